"""Makes one call of a scripted life fail, in turn: catalogue, tier files, mover, engine, data plane."""

from __future__ import annotations

import errno
import os
import sqlite3
from typing import TYPE_CHECKING, Any

from kvd.tier.ddr import DdrStore
from kvd.tier.mover import Mover
from kvd.tier.nvme import NvmeStore
from kvdriver import EngineError, InProcessDevice, Map, Reserve, Status
from support.fake_plane import FakePlane

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from support.tiers import Tiers

MAY_FAIL = (
    (DdrStore, ("create", "open")),
    (NvmeStore, ("create", "open")),
    (Mover, ("promote", "demote")),
    (FakePlane, ("backing_open", "object_add", "object_switch")),
)
"""What is called for its effect, and fails in ways that callers must live with."""


class FaultPoints:
    """Counts calls that may fail, and lets the chosen one fail: before it had any effect."""

    def __init__(self, fail_at: int) -> None:
        self.fail_at = fail_at
        self.count = 0
        self.armed = False
        self.failed = ""

    def hit(self, what: str, error: Callable[[], Exception]) -> None:
        if self.armed:
            self.count += 1
            if self.count == self.fail_at:
                self.failed = what
                raise error()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for owner, names in MAY_FAIL:
            for name in names:
                patch.setattr(owner, name, self._failing(f"{owner.__name__}.{name}", getattr(owner, name)))
        run = InProcessDevice.run

        async def refusing(device: InProcessDevice, command: Any) -> Any:
            if isinstance(command, Map) or (isinstance(command, Reserve) and command.blocks):
                self.hit(f"{command}", lambda: EngineError(Status.NO_SPACE, command))
            return await run(device, command)

        patch.setattr(InProcessDevice, "run", refusing)

    def _failing(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            self.hit(what, lambda: OSError(errno.EIO, os.strerror(errno.EIO)))
            return function(*args, **more)

        return call

    def watch(self, tiers: Tiers) -> None:
        db = tiers.catalog.db
        db._connection = _Connection(db._connection, self)  # type: ignore[assignment]
        self.armed = True


class _Connection:
    """A connection on a disk that is full for one statement."""

    def __init__(self, real: sqlite3.Connection, points: FaultPoints) -> None:
        self._real = real
        self._points = points

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        if not statement.startswith(("SELECT", "PRAGMA", "ROLLBACK")):
            self._points.hit(statement, _full)
        return self._real.execute(statement, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error
