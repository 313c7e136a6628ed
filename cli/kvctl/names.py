"""Names: from the user's arguments to the daemon's paths, and to the terminal.

A name is bytes. Between the two programs it is a string in which a byte that is not UTF-8 is a lone surrogate (PEP
383). Nothing here asks the file system: a hung mount must not hang the tool that is to mend it.
"""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING

from kvctl.exits import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def to_wire(name: bytes) -> str:
    """Return the name as JSON carries it."""
    return name.decode("utf-8", "surrogateescape")


def from_wire(name: str) -> bytes:
    """Return the name's bytes."""
    return name.encode("utf-8", "surrogateescape")


def inside(given: Path, mount: str) -> bytes:
    """Return the path within the mount that the user means.

    Parameters
    ----------
    given
        An absolute path below the mount point, or one relative to a working directory that is. ``..`` is resolved by
        the letter, symbolic links are not followed.
    mount
        The mount point.

    Raises
    ------
    UsageError
        If it lies elsewhere.
    """
    name = os.fsencode(given)
    if not name.startswith(b"/"):
        try:
            name = os.path.join(os.getcwdb(), name)  # noqa: PTH109, PTH118  Path can't hold bytes
        except FileNotFoundError:
            raise UsageError(f"{to_wire(name)}: the working directory is gone; give an absolute path") from None
    root = from_wire(mount).rstrip(b"/")
    name = b"/" + posixpath.normpath(name).lstrip(b"/")
    if name != root and not name.startswith(root + b"/"):
        raise UsageError(f"{to_wire(name)} is not in {mount}, the mount that this daemon serves")
    return name[len(root) :] or b"/"


def show(name: str) -> str:
    r"""Return a name that is safe and unambiguous on a terminal: what can't be printed is escaped as in ``ls -b``."""
    return "".join(char if char.isprintable() and char != "\\" else _escape(char) for char in name)


def _escape(char: str) -> str:
    match char:
        case "\n":
            return "\\n"
        case "\t":
            return "\\t"
        case "\\":
            return "\\\\"
        case _:
            return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
