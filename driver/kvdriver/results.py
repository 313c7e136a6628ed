"""What calls into C return."""

from __future__ import annotations

import os


def check_result(result: int, what: str) -> None:
    """Turn 0 or -errno into nothing or an `OSError` that says what failed."""
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
