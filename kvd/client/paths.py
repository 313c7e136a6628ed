"""What is done to files of the mount, the same for both clients; and paths as people and the daemon have them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

Data: TypeAlias = bytes | bytearray | memoryview


PARENT = "user.kvd.parent"


def inside(path: str | os.PathLike[str], mount: str) -> str:
    """Return an absolute path of the mount as the daemon has it; one within the mount already stays so."""
    text = os.fspath(path)
    root = mount.rstrip("/")
    return text[len(root) :] or "/" if text == root or text.startswith(root + "/") else text


def outside(path: str, mount: str) -> Path:
    """Return where a path within the mount is for everybody."""
    return Path(mount.rstrip("/") + path)


def store(path: Path, data: Data, parent: str = "") -> None:
    """Write a new object and publish it whole: nobody sees a part of it, nor the object without its parent.

    `parent` is the object before it in its chain: a name in the same directory, or an absolute path within the mount.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        try:
            os.posix_fallocate(descriptor, 0, max(1, memoryview(data).nbytes))
            os.ftruncate(descriptor, memoryview(data).nbytes)
            _write_all(descriptor, data)
            if parent:
                os.setxattr(descriptor, PARENT, os.fsencode(parent))
        finally:
            os.close(descriptor)
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def append(path: Path, data: Data) -> None:
    """Add to the end of a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        _write_all(descriptor, data)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: Data) -> None:
    left = memoryview(data).cast("B")
    while left:
        left = left[os.write(descriptor, left) :]
