"""Sessions of a fake daemon: what the control API is told and asked of them, in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import trio

from kvd.api.sessions import LeaseGrant, SessionChange, SessionDetail, SessionEntry
from kvd.errors import BusyError, ExistsError, InvalidError, NotFoundError

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator

    from kvd.api.sessions import ForkPoint

SESSION = SessionEntry(
    path=b"/model/a.bin",
    ino=7,
    kind="file",
    state="idle",
    since_s=12.5,
    open_objects=0,
    leases=1,
    pin="soft",
    pin_until_s=1_700_000_900.0,
    ttl_s=600.0,
    refresh=True,
    expires_s=1_700_000_600.0,
    priority=3,
    window=4096,
    sink=4,
)
COLD = replace(
    SESSION, path=b"/model/s-\xff", ino=8, kind="dir", state="cold", since_s=None, leases=0, pin="none", ttl_s=0.0
)


@dataclass
class FakeSessions:
    """See `kvd.api.sessions.SessionControl`."""

    by_path: dict[bytes, SessionEntry] = field(default_factory=lambda: {each.path: each for each in (SESSION, COLD)})
    leases: dict[int, float] = field(default_factory=dict)
    forked: list[ForkPoint] = field(default_factory=list)

    def _find(self, path: bytes) -> SessionEntry:
        if path not in self.by_path:
            raise NotFoundError(f"{path.decode(errors='surrogateescape')}: no such file or directory in the mount")
        return self.by_path[path]

    async def sessions(self, path: bytes) -> AsyncIterator[SessionEntry]:
        await trio.lowlevel.checkpoint()
        below = path.rstrip(b"/") + b"/"
        for each in [each for name, each in self.by_path.items() if name == path or name.startswith(below)]:
            yield each

    def session(self, path: bytes) -> SessionEntry:
        return self._find(path)

    async def session_detail(self, path: bytes) -> SessionDetail:
        await trio.lowlevel.checkpoint()
        return SessionDetail(session=self._find(path), objects=2, tiers={"ddr": 65536, "nvme": 4096}, hits=5)

    def _set(self, path: bytes, **values: object) -> SessionEntry:
        self.by_path[path] = replace(self._find(path), **values)  # type: ignore[arg-type]
        return self.by_path[path]

    def release_session(self, path: bytes) -> SessionEntry:
        return self._set(path, state="released")

    def resume_session(self, path: bytes, *, prefetch: bool = False) -> SessionEntry:
        return self._set(path, state="warming" if prefetch else "idle")

    def ask(self, path: bytes, what: str) -> str:
        return self._set(path, state={"release": "released", "resume": "idle", "prefetch": "warming"}[what]).state

    def give_time(self, path: bytes, ttl_s: float, *, refresh: bool) -> float:
        return self.live_session(path, ttl_s, refresh=refresh).expires_s

    async def close_session(self, path: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if self._find(path).leases:
            raise BusyError(f"{path.decode()}: in use: leased")
        del self.by_path[path]

    async def fork_session(self, path: bytes, new_path: bytes, at: ForkPoint) -> SessionEntry:
        await trio.lowlevel.checkpoint()
        if new_path in self.by_path:
            raise ExistsError(f"{new_path.decode(errors='surrogateescape')}: is there already")
        self.forked.append(at)
        self.by_path[new_path] = replace(self._find(path), path=new_path, ino=100 + len(self.forked), state="cold")
        return self.by_path[new_path]

    async def pin_session(self, path: bytes, pin: str, *, for_s: float = 0.0) -> int:
        await trio.lowlevel.checkpoint()
        if pin not in ("none", "soft", "hard"):
            raise InvalidError(f"a pin is none, soft or hard, not {pin!r}")
        self._set(path, pin=pin, pin_until_s=for_s and 1_700_000_000.0 + for_s)
        return 2

    def live_session(self, path: bytes, ttl_s: float, *, refresh: bool) -> SessionEntry:
        return self._set(path, ttl_s=ttl_s, refresh=refresh, expires_s=ttl_s and 1_700_000_000.0 + ttl_s)

    def lease(self, path: bytes, for_s: float, sock: socket.socket) -> LeaseGrant:
        del sock
        self._find(path)
        self.leases[len(self.leases) + 1] = for_s
        return LeaseGrant(lease=len(self.leases), for_s=for_s)

    def renew_lease(self, number: int, for_s: float, sock: socket.socket) -> LeaseGrant:
        del sock
        if number not in self.leases:
            raise NotFoundError(f"no lease {number}")
        self.leases[number] = for_s
        return LeaseGrant(lease=number, for_s=for_s)

    def end_lease(self, number: int, sock: socket.socket) -> None:
        del sock
        if self.leases.pop(number, None) is None:
            raise NotFoundError(f"no lease {number}")

    async def watch_sessions(self, path: bytes) -> AsyncIterator[SessionChange]:
        await trio.lowlevel.checkpoint()
        for before, after in (("idle", "cooling"), ("cooling", "cold")):
            yield SessionChange(path=path, ino=7, before=before, after=after, lost=3 if after == "cold" else 0)
