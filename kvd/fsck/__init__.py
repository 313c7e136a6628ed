"""Checking what is stored, repairing it, and making the catalogue anew from the files."""

from kvd.fsck.offline import check, examine, run

__all__ = ["check", "examine", "run"]
