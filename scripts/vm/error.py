"""What can go wrong before a test runs."""

from __future__ import annotations


class BedError(Exception):
    """The bed cannot be set up or started.

    Parameters
    ----------
    what
        What is wrong, in one line (the output of a program may follow).
    mend
        What mends it, in one line.
    """

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(f"{what}\nmend: {mend}")
        self.what = what
        self.mend = mend
