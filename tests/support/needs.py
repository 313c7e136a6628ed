"""What tests need of the machine: where it is missing they fail, so that nobody takes a skip for a pass."""

from __future__ import annotations

import os
import shutil

import pytest

NO_FUSE = "KVD_TEST_NO_FUSE"
"""Set to 1 where it is known that tests can't mount: those that can't be run are skipped then."""


def need_fuse(*, root: bool = False) -> None:
    """Fail where FUSE (and root, for tests that mount by themselves, change users or pass through) can't be had."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        go_without("/dev/fuse can't be opened")
    elif root:
        need_root()


def need_root() -> None:
    """Fail where the test does not run as root."""
    if os.geteuid() != 0:
        go_without("this test mounts or changes users: it needs root")


def need_tool(name: str) -> None:
    """Fail where a program that `make setup` or every Linux brings is missing."""
    if shutil.which(name) is None:
        go_without(f"needs {name}, and it is not installed")


def go_without(reason: str) -> None:
    """Skip the test if that was allowed, else fail it."""
    if os.environ.get(NO_FUSE) == "1":
        pytest.skip(f"{reason}, and {NO_FUSE}=1")
    pytest.fail(f"{reason}; set {NO_FUSE}=1 to go without such tests", pytrace=False)
