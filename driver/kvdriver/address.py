"""Names of devices: ``in-process``, ``vfio-user:/run/card.sock``, ``vfio:0000:01:00.0``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

IN_PROCESS: Final = "in-process"
SLOT: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]")
"""How the kernel writes the slot of a PCI device."""
_SOCKET_PATH_BYTES_MAX: Final = 107
"""What fits into a sockaddr_un."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAddress:
    """Where a device is.

    Attributes
    ----------
    scheme
        ``in-process``, ``vfio-user`` or ``vfio``.
    place
        The socket's path or the slot; empty in process.
    """

    scheme: str
    place: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a device's name.

        Raises
        ------
        ValueError
            With one sentence that says how names are written.
        """
        scheme, _, place = text.partition(":")
        if text == IN_PROCESS:
            return cls(scheme=IN_PROCESS)
        if scheme == "vfio-user":
            if not place.startswith("/") or "\0" in place:
                raise ValueError(f'"{text}" names no socket: write vfio-user: and an absolute path')
            if len(place.encode("utf-8", "surrogateescape")) > _SOCKET_PATH_BYTES_MAX:
                raise ValueError(
                    f'the socket in "{text}" has more than {_SOCKET_PATH_BYTES_MAX} bytes: choose a shorter path'
                )
            return cls(scheme=scheme, place=place)
        if scheme == "vfio":
            if not SLOT.fullmatch(place):
                raise ValueError(f'"{text}" names no slot: write it as in vfio:0000:01:00.0')
            return cls(scheme=scheme, place=place)
        raise ValueError(f'"{text}" is no device: write "{IN_PROCESS}", "vfio-user:/path.sock" or "vfio:0000:01:00.0"')

    def __str__(self) -> str:
        return f"{self.scheme}:{self.place}" if self.place else self.scheme

    @property
    def is_in_process(self) -> bool:
        """Whether the engine runs in this process."""
        return self.scheme == IN_PROCESS

    @property
    def is_kernel(self) -> bool:
        """Whether the kernel's VFIO drives it."""
        return self.scheme == "vfio"
