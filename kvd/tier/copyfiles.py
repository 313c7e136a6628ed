"""The open files of an object's copy on NVMe: one a part."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvd.tier.mover import Part

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile(Part):
    """An open part of a copy, as the mover takes it; `dir_fd` is its folder where the part is new."""

    path: Path

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.fd)
        if self.dir_fd is not None:
            os.close(self.dir_fd)


class CopyFiles:
    """The open files of a copy; `close` when done.

    Attributes
    ----------
    parts
        In order; part k holds the stripes k, k + n, ...
    stripe_bytes
        0 with one part.
    """

    def __init__(self, parts: tuple[PartFile, ...], stripe_bytes: int) -> None:
        self.parts = parts
        self.stripe_bytes = stripe_bytes

    def __repr__(self) -> str:
        return f"<CopyFiles {', '.join(str(part.path) for part in self.parts)}>"

    @property
    def dirs(self) -> tuple[int, ...]:
        """The directory of each part."""
        return tuple(part.device for part in self.parts)

    def close(self) -> None:
        """Close the descriptors."""
        for part in self.parts:
            part.close()
        self.parts = ()
