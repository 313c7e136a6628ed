"""Extended attributes: stored ones, and `user.kvd.*`, which tell and steer an object, a session or a namespace."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

from kvd.catalog.given import NAME as GIVEN
from kvd.catalog.names import fail
from kvd.catalog.records import NS, Pin
from kvd.session.windows import BYTES_PER_TOKEN
from kvd.tier.namespacing import POLICIES as NAMESPACE_POLICIES
from kvdriver import BLOCK_BYTES, Tier

if TYPE_CHECKING:
    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Inode
    from kvd.session.verbs import SessionVerbs
    from kvd.tier.objects import Objects

OWN = b"user.kvd."
STORED = (b"user.", b"trusted.", b"security.")
"""Namespaces that a client may set; POSIX ACLs (`system.`) are refused, since the kernel does not enforce them here."""
PIN = b"user.kvd.pin"
TTL = b"user.kvd.ttl"
FINGERPRINT = b"user.kvd.fingerprint"
POLICIES = {OWN + policy.encode(): policy for policy in NAMESPACE_POLICIES if policy != "session"}
FORMAT = b"user.kvd.format"
"""Of a file, how its copy on NVMe is kept; of a directory its namespace's ladder."""
GROUPING = b"user.kvd.sessions"
"""The namespace's policy `session`: what a session is, ``file`` or ``directory``."""
OF_OBJECTS = (b"user.kvd.tier", b"user.kvd.state", b"user.kvd.hits", b"user.kvd.clean", PIN)
"""What is told of a file; of a directory that is a session some of it, too."""
OF_SESSIONS = tuple(OWN + name for name in (b"session", b"session_state", b"leases", b"expires", b"tiers", b"formats"))
NUMBERS = {OWN + name: name.decode() for name in (b"priority", b"window", b"sink")}
PARENT = b"user.kvd.parent"
"""Of a file, the one before it in its chain."""
QUOTA = b"user.kvd.quota"
"""How the namespace stands in each tier."""
ASKED = tuple(OWN + name for name in (b"release", b"resume", b"prefetch"))
"""What is done when ``1`` is written."""
VALID = b"user.kvd.valid"
"""Which tokens of a file are there, ``START-END START-END``, the end not among them."""
COUNTED = (b"user.kvd.tiers", b"user.kvd.formats")
"""What takes a look at each object of a session."""
TOLD = (*OF_OBJECTS, *OF_SESSIONS, VALID)
KNOWN = (*TOLD, TTL, *NUMBERS, *ASKED, BYTES_PER_TOKEN)


class Xattrs:
    """The attributes of every inode."""

    def __init__(self, catalog: Catalog, objects: Objects, sessions: SessionVerbs) -> None:
        self._catalog = catalog
        self._objects = objects
        self._sessions = sessions

    async def find(self, inode: Inode, name: bytes) -> bytes:
        """Return a value, also of those that take a look at each object of a session; ENODATA if there is none."""
        if name == QUOTA:
            return await self._tell_quota(inode.ino)
        if name == VALID and inode.is_file:
            valid = await self._sessions.windows.valid(inode)
            if valid is None:
                raise fail(errno.ENODATA, name)
            return " ".join(f"{start}-{end}" for start, end in valid).encode()
        if name not in COUNTED or not self._is_told(inode):
            return self.get(inode, name)
        found = await self._sessions.detail(inode)
        if name == b"user.kvd.formats":
            return " ".join(f"{each}={count}" for each, count in sorted(found.formats.items())).encode()
        return " ".join(f"{tier}={found.tiers.get(tier, 0)}" for tier in ("ddr", "nvme")).encode()

    def get(self, inode: Inode, name: bytes) -> bytes:
        """Return a value that is known without looking far; ENODATA if there is none."""
        if not name.startswith(OWN):
            return self._catalog.names.xattr(inode.ino, name)
        if name == FORMAT and inode.is_file:
            copy = self._catalog.placements.copy(inode.ino)
            if copy is None:
                raise fail(errno.ENODATA, name)
            return copy.format.encode()
        if name in (FINGERPRINT, GROUPING) or name in POLICIES:
            return self._tell_namespace(inode.ino, name)
        if name in (PARENT, BYTES_PER_TOKEN):
            return self._tell_parent(inode) if name == PARENT else self._tell_bytes_per_token(inode)
        if name not in KNOWN or not self._is_told(inode):
            raise fail(errno.ENODATA, name)
        if inode.is_file and name in OF_OBJECTS:
            return self._tell(inode.ino, name)
        return self._tell_session(inode, name)

    def _is_told(self, inode: Inode) -> bool:
        """Whether an inode is an object or a session."""
        return inode.is_file or (inode.is_dir and self._catalog.sessions.is_session(inode.ino, is_dir=True))

    def _tell_namespace(self, ino: int, name: bytes) -> bytes:
        """Return what an inode's namespace has; anything below it is asked alike."""
        namespace = self._catalog.namespaces.of(ino)
        if namespace is None or (name == FINGERPRINT and not namespace.fingerprint):
            raise fail(errno.ENODATA, name)
        if name == GROUPING:
            return namespace.session.encode()
        told = namespace.fingerprint if name == FINGERPRINT else getattr(namespace, POLICIES[name])
        return str(told).encode()

    def _tell_parent(self, inode: Inode) -> bytes:
        parent = self._catalog.chains.tell(inode.ino) if inode.is_file else None
        if parent is None:
            raise fail(errno.ENODATA, PARENT)
        return parent

    async def _tell_quota(self, ino: int) -> bytes:
        """Return a line a tier, of what an inode's namespace has and may have; in bytes, limit 0 for none."""
        namespace = self._catalog.namespaces.of(ino)
        if namespace is None:
            raise fail(errno.ENODATA, QUOTA)
        told = await self._objects.quotas.quota(namespace)
        numbers = ("guaranteed", "limit", "used", "borrowed", "may_take")
        lines = (
            " ".join((each.tier.name.lower(), *(f"{name}={getattr(each, name) * BLOCK_BYTES}" for name in numbers)))
            for each in told
        )
        return "\n".join(lines).encode()

    def _tell_bytes_per_token(self, inode: Inode) -> bytes:
        found = self._sessions.windows.bytes_per_token(inode.ino)
        if not found:
            raise fail(errno.ENODATA, BYTES_PER_TOKEN)
        return str(found).encode()

    def _tell(self, ino: int, name: bytes) -> bytes:
        placement = self._catalog.placements.get(ino)
        live = self._objects.lives.peek(ino)
        match name.removeprefix(OWN):
            case b"tier":
                return Tier(placement.tier).name.lower().encode()
            case b"state":
                return b"faulted" if placement.damaged else b"sealed" if placement.sealed else b"filling"
            case b"hits":
                self._objects.sharing.drain()
                return str(live.hits if live else placement.hits).encode()
            case b"clean":
                copy = self._catalog.placements.copy(ino)
                return b"1" if copy is not None and copy.current else b"0"
            case _:
                return b"1" if placement.pinned else b"0"

    def _tell_session(self, inode: Inode, name: bytes) -> bytes:
        session = self._sessions.session_of(inode)
        said = self._catalog.sessions.get(inode.ino)
        told: str | bytes | None
        match name.removeprefix(OWN):
            case b"session":
                told = self._catalog.names.path(session.ino) or b""
            case b"session_state" | b"state":
                told = self._sessions.parts.state(session.ino).name.lower()
            case b"leases":
                told = str(self._sessions.leases.of(inode.ino))
            case b"pin":
                told = "0" if said.pin is Pin.NONE else "1"
            case b"ttl":
                told = f"{said.ttl_ns / NS:g}{' refresh' if said.refresh else ''}"
            case b"expires":
                told = f"{said.expire_ns / NS:.1f}" if said.expire_ns else None
            case b"priority" | b"window" | b"sink" as number:
                told = str(getattr(self._catalog.sessions.get(session.ino), number.decode()))
            case _:
                told = None
        if told is None:
            raise fail(errno.ENODATA, name)
        return told if isinstance(told, bytes) else told.encode()

    def list(self, inode: Inode) -> list[bytes]:
        """Return the names of an inode's stored attributes; what kvd tells by itself would be copied by `cp -a`."""
        return [name for name in self._catalog.names.xattrs(inode.ino) if name != GIVEN]

    async def set(self, inode: Inode, name: bytes, value: bytes) -> None:
        """Set a value; EOPNOTSUPP for a namespace that is not kept, EINVAL for a value that kvd can't follow."""
        if name == FINGERPRINT:
            self._objects.namespacing.offer(inode, value)
            return
        if name in POLICIES or name == GROUPING:
            self._objects.namespacing.set_policy(inode, POLICIES.get(name, "session"), value)
            self._sessions.parts.regroup()
            return
        if name == PARENT and inode.is_file:
            self._catalog.chains.put(inode.ino, self._catalog.chains.find(inode.ino, value))
            return
        if name == BYTES_PER_TOKEN:
            self._set_bytes_per_token(inode, _number(value))
            return
        if name.startswith(OWN):
            await self._steer(inode, name, value)
            return
        if name in STORED:
            raise fail(errno.EINVAL, name)
        if not name.startswith(STORED):
            raise fail(errno.EOPNOTSUPP, name)
        self._catalog.names.set_xattr(inode.ino, name, value, time.time_ns())

    def _set_bytes_per_token(self, inode: Inode, number: int) -> None:
        """Keep what a token takes, of an object, a session or a namespace; EPERM on what is none of these, 0 takes it back."""
        namespace = self._catalog.namespaces.of(inode.ino)
        if not self._is_told(inode) and (namespace is None or namespace.ino != inode.ino):
            raise fail(errno.EPERM, BYTES_PER_TOKEN)
        if number:
            self._sessions.windows.check_bytes_per_token(number)
            self._catalog.names.set_xattr(inode.ino, BYTES_PER_TOKEN, str(number).encode(), time.time_ns())
        else:
            self._catalog.names.remove_xattr(inode.ino, BYTES_PER_TOKEN, time.time_ns())
        self._sessions.windows.changed(inode.ino)

    async def _steer(self, inode: Inode, name: bytes, value: bytes) -> None:
        """Follow what a client sets on an object or a session; EPERM for what can't be set there."""
        if name in (PARENT, QUOTA):
            raise fail(errno.EPERM, name)
        if name not in KNOWN:
            raise fail(errno.EOPNOTSUPP, name)
        settable = name in (PIN, TTL, *NUMBERS, *ASKED)
        if not settable or not self._is_told(inode):
            raise fail(errno.EPERM, name)
        if name == PIN:
            pin, for_s = _pin(value)
            await self._sessions.lifetimes.pin(inode.ino, pin, for_s=for_s)
        elif name == TTL:
            ttl_s, refresh = _ttl(value)
            self._sessions.lifetimes.live(inode.ino, ttl_s, refresh=refresh)
        elif name in NUMBERS:
            self._sessions.set_number(self._sessions.session_of(inode), NUMBERS[name], _number(value))
        else:
            self._ask(inode, name, value)

    def _ask(self, inode: Inode, name: bytes, value: bytes) -> None:
        if value != b"1":
            raise fail(errno.EINVAL, name)
        session = self._sessions.session_of(inode)
        if name == b"user.kvd.release":
            self._sessions.release(session)
        else:
            self._sessions.resume(session, prefetch=name == b"user.kvd.prefetch")

    async def remove(self, inode: Inode, name: bytes) -> None:
        """Remove a value; ENODATA if there is none."""
        if name in (PIN, TTL, *NUMBERS) and self._is_told(inode):
            await self._steer(inode, name, b"0")
            return
        if name == BYTES_PER_TOKEN:
            self._set_bytes_per_token(inode, 0)
            return
        if name in (FINGERPRINT, GROUPING) or name in POLICIES:
            self._tell_namespace(inode.ino, name)
            raise fail(errno.EPERM, name)
        if name == PARENT:
            self._tell_parent(inode)
            self._catalog.chains.drop(inode.ino)
            return
        if name.startswith(OWN):
            raise fail(errno.ENODATA, name)
        self._catalog.names.remove_xattr(inode.ino, name, time.time_ns())


def _pin(value: bytes) -> tuple[Pin, float]:
    """Return the pin that ``0``, ``1``, ``hard``, ``soft`` or ``soft SECONDS`` is, and how long it lasts; EINVAL for others."""
    word, *rest = value.decode("ascii", "replace").split(" ")
    pins = {"0": Pin.NONE, "1": Pin.HARD, "hard": Pin.HARD, "soft": Pin.SOFT}
    if word not in pins or len(rest) > 1 or (rest and word != "soft"):
        raise fail(errno.EINVAL, value)
    return pins[word], _seconds(rest[0]) if rest else 0.0


def _ttl(value: bytes) -> tuple[float, bool]:
    """Return the time to live that ``SECONDS`` or ``SECONDS refresh`` is; EINVAL for others."""
    seconds, *rest = value.decode("ascii", "replace").split(" ")
    if rest not in ([], ["refresh"]):
        raise fail(errno.EINVAL, value)
    return _seconds(seconds), bool(rest)


def _seconds(text: str) -> float:
    whole, _, part = text.partition(".")
    if not whole.isdecimal() or (part and not part.isdecimal()):
        raise fail(errno.EINVAL, text)
    return float(text)


def _number(value: bytes) -> int:
    if not value.isdigit():
        raise fail(errno.EINVAL, value)
    return int(value)
