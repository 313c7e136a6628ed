"""`kvctl device selftest` on the kernel's vfio-pci."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import card

from kvctl.exits import Exit

if TYPE_CHECKING:
    import pytest

STEPS = ["open", "capabilities", "session", "map", "translate", "bytes", "remap", "refusal", "unmap", "destroy"]


def test_selftest(capsys: pytest.CaptureFixture[str]):
    assert card.kvctl("device", "selftest", str(card.address()), "--json") == Exit.OK
    told = json.loads(card.output(capsys))
    assert told["passed"]
    assert [step["name"] for step in told["steps"]] == [*STEPS, "tables"]
    assert told["steps"][0]["told"] == "vfio"
