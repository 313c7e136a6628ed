"""kvd with bugs in some of its handlers. Usage: broken_kvd.py KVD ARGUMENT..., as kvd itself is called."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import kvd.daemon
from kvd.__main__ import main
from kvd.fs.guard import guarded
from kvd.fs.operations import Operations

if TYPE_CHECKING:
    from collections.abc import Callable

BUGGY = b"bug"


def _with_bug(name: str) -> Callable[..., Any]:
    sound = getattr(Operations, name).__wrapped__

    async def handler(self: Operations, *args: Any) -> Any:
        if BUGGY in args:
            raise RuntimeError(f"a bug in {name}")
        return await sound(self, *args)

    handler.__name__ = name
    return guarded(handler)


class BrokenOperations(Operations):
    """Handlers that stumble over names and values that are `BUGGY`."""


for _name in ("lookup", "mkdir", "create", "unlink", "rename", "setxattr", "symlink"):
    setattr(BrokenOperations, _name, _with_bug(_name))

if __name__ == "__main__":
    kvd.daemon.Operations = BrokenOperations  # type: ignore[misc]
    del sys.argv[0]
    sys.exit(main())
