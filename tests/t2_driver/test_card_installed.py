"""The card model's program is installed beside kvd."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

PROGRAM = Path(sysconfig.get_path("scripts")) / "kvd-card"


def test_help_names_the_options_that_the_page_describes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kvd-card.md").read_text(encoding="utf-8")
    text = subprocess.run([PROGRAM, "--help"], check=True, capture_output=True, text=True).stdout
    options = {word for word in text.split() if word.startswith("--")} - {"--device"}
    assert options
    for option in options:
        assert f"`{option}" in page
    faults = text.split("(0):")[1].split(";")[0].replace(",", " ").split()
    assert len(faults) == 12
    for fault in faults:
        assert f"`{fault}`" in page


def test_a_wrong_option_is_one_sentence_and_status_2() -> None:
    run = subprocess.run([PROGRAM, "--socket", "x", "--depth", "3"], check=False, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr == "kvd-card: --depth 3: must be a power of two from 2 to 1024\n"
