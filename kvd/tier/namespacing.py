"""What can be done to namespaces: make, change, attach, invalidate, remove; for the control API and for xattrs of the mount.

A fingerprint is compared, never changed, while there is content: a namespace gets another one only together with an
invalidation. Whoever offers a wrong one is refused, and that is an alarm: it would have read another model's KV.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import structlog
import trio

from kvd.catalog.names import NAME_BYTES_MAX, fail
from kvd.catalog.namespaces import is_name
from kvd.catalog.records import Namespace
from kvd.catalog.schema import ROOT_INO
from kvd.errors import ExistsError, InvalidError, MismatchError, NotEmptyError, NotFoundError
from kvd.policy.fingerprint import canonical, decode, differences, parse
from kvd.policy.formats import check_layout, parse_ladder
from kvd.policy.quotas import PRIORITY_MAX
from kvdriver import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvd.catalog.catalog import Catalog
    from kvd.catalog.records import Inode
    from kvd.config import AdmissionConfig
    from kvd.tier.admission import Admission
    from kvd.tier.quotas import Quotas
    from kvd.tier.reaping import Reaper

log = structlog.get_logger(__name__)

ADMIT = ("all", "reused")
DURABILITY = ("back", "through")
ON_FAULT = ("eio", "miss")
SESSION = ("file", "directory")
ON_FULL = ("", "evict", "refuse", "block")
CHOICES = {
    "admit": ADMIT,
    "durability": DURABILITY,
    "on_fault": ON_FAULT,
    "session": SESSION,
    "on_full": ON_FULL,
}
"""The words that each policy takes, of those that take words."""
CHECKS = {"format": parse_ladder, "layout": check_layout}
"""What refuses the texts that a policy does not take, of the others."""
POLICIES = (*CHOICES, *CHECKS)
"""What is told, and set, as text; by attributes of the mount, too."""
SIZES = ("ddr_guaranteed_bytes", "ddr_limit_bytes", "nvme_guaranteed_bytes", "nvme_limit_bytes")
NUMBERS = (*SIZES, "priority")
"""What only the control API sets: a client's owner is not who shares the tiers out."""
SIZE_MAX = 1 << 62
ALARMS_KEPT = 20
ALARM_AGAIN_S = 60.0
"""The same refusal is counted each time, and logged and kept once in this time."""
MODE_MAX = 0o7777
ID_MAX = (1 << 32) - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Somebody offered a wrong fingerprint; `what` names each key with both values."""

    when_s: float
    namespace: bytes
    what: str


class Namespacing:
    """The operations, over the catalogue; `defaults` are the policies where none are given."""

    def __init__(
        self, catalog: Catalog, admission: Admission, reaper: Reaper, quotas: Quotas, *, defaults: AdmissionConfig
    ) -> None:
        self._catalog = catalog
        self._namespaces = catalog.namespaces
        self._admission = admission
        self._reaper = reaper
        self._quotas = quotas
        self._defaults = defaults
        self.mismatches = 0
        self.alarms: deque[Alarm] = deque(maxlen=ALARMS_KEPT)
        self._told: dict[tuple[int, str], float] = {}

    def __repr__(self) -> str:
        return f"<Namespacing {self._namespaces!r} mismatches={self.mismatches}>"

    # -- finding -------------------------------------------------------------------------------------------------

    def all(self) -> list[tuple[bytes, Namespace]]:
        """Return every namespace with its name."""
        return self._namespaces.all()

    def find(self, name: bytes) -> tuple[Inode, Namespace]:
        """Return a namespace by its name, which may have slashes around it.

        Raises
        ------
        NotFoundError
            There is no such directory, or it is none.
        """
        name = _checked(name)
        inode = self._catalog.names.lookup(ROOT_INO, name)
        namespace = None if inode is None else self._namespaces.get(inode.ino)
        if inode is None or namespace is None:
            why = "no such namespace" if inode is None else "is no namespace; kvctl namespace create makes it one"
            raise NotFoundError(f"{os.fsdecode(name)}: {why}")
        return inode, namespace

    # -- making and changing -------------------------------------------------------------------------------------

    async def create(
        self,
        name: bytes,
        *,
        fingerprint: Mapping[str, str],
        policies: Mapping[str, str | int],
        mode: int,
        uid: int,
        gid: int,
    ) -> Namespace:
        """Make a namespace, and its directory where there is none.

        Raises
        ------
        ExistsError
            It is one already, or the name is that of a file.
        NotEmptyError
            The directory has content, of which nobody knows the fingerprint.
        InvalidError
            A name, a fingerprint, a policy, a mode or an owner that can't be.
        OverCommittedError
            A tier has not so much to guarantee.
        """
        name = _checked(name)
        text, chosen = canonical(fingerprint), _chosen(policies)
        if not (0 <= mode <= MODE_MAX and 0 <= uid <= ID_MAX and 0 <= gid <= ID_MAX):
            raise InvalidError("the mode is 0 to 07777, an owner a number")
        await self._quotas.check(self._new(0, text, chosen, 0))
        now_ns = time.time_ns()
        with self._catalog.db.transaction():
            inode = self._catalog.names.lookup(ROOT_INO, name)
            old = inode is not None
            if inode is None:
                inode = self._catalog.names.make(
                    ROOT_INO, name, mode=stat.S_IFDIR | mode, uid=uid, gid=gid, now_ns=now_ns
                )
            made = self._put_new(inode, os.fsdecode(name), text, chosen, now_ns)
        if old and self._namespaces.count_in(inode.ino):
            self._catalog.charges.recount()
        log.info("namespace made", namespace=name, fingerprint=text)
        await self._reaper.keeper.forget_names([(ROOT_INO, name)])  # that there was none
        await self._catalog.db.sync()
        return made

    def _put_new(
        self, inode: Inode, told: str, fingerprint: str, policies: Mapping[str, str | int], now_ns: int
    ) -> Namespace:
        if not inode.is_dir:
            raise ExistsError(f"{told}: there is a file of that name")
        if self._namespaces.get(inode.ino) is not None:
            raise ExistsError(f"{told}: is a namespace already; kvctl namespace attach compares its fingerprint")
        if fingerprint and self._namespaces.count_in(inode.ino):
            raise NotEmptyError(f"{told}: has content of an unknown fingerprint; remove that first")
        made = self._new(inode.ino, fingerprint, policies, now_ns)
        self._namespaces.put(made)
        return made

    def _new(self, ino: int, fingerprint: str, policies: Mapping[str, str | int], now_ns: int) -> Namespace:
        defaults = self._defaults
        made = Namespace(
            ino=ino,
            fingerprint=fingerprint,
            admit=defaults.admit,
            durability=defaults.durability,
            on_fault=defaults.on_fault,
            created_ns=now_ns,
        )
        return replace(made, **dict[str, Any](policies))

    async def set(self, name: bytes, policies: Mapping[str, str | int]) -> Namespace:
        """Change policies; the others stay.

        Raises
        ------
        OverCommittedError
            A tier has not so much to guarantee.
        """
        chosen = _chosen(policies)
        if not chosen.keys().isdisjoint(SIZES):
            _, namespace = self.find(name)
            await self._quotas.check(replace(namespace, **dict[str, Any](chosen)))
        _, namespace = self.find(name)
        return self._set(namespace, chosen)

    def _set(self, namespace: Namespace, policies: Mapping[str, str | int]) -> Namespace:
        changed = replace(namespace, **dict[str, Any](policies))
        self._namespaces.put(changed)
        self._admission.policies_changed()
        return changed

    # -- comparing -----------------------------------------------------------------------------------------------

    def attach(self, name: bytes, fingerprint: Mapping[str, str]) -> Namespace:
        """Return a namespace to who offers its fingerprint.

        Raises
        ------
        MismatchError
            It is another one; counted, logged, and told in the status.
        """
        canonical(fingerprint)
        _, namespace = self.find(name)
        differ = differences(decode(namespace.fingerprint), fingerprint)
        if differ:
            told = os.fsdecode(_checked(name))
            self._alarm(_checked(name), namespace, "; ".join(differ))
            raise MismatchError(f"{told}: another fingerprint: {'; '.join(differ)}")
        return namespace

    def _alarm(self, name: bytes, namespace: Namespace, what: str) -> None:
        self.mismatches += 1
        now_s = time.monotonic()
        key = (namespace.ino, what)
        if now_s - self._told.get(key, -ALARM_AGAIN_S) < ALARM_AGAIN_S:
            return
        self._told = {kept: at_s for kept, at_s in self._told.items() if now_s - at_s < ALARM_AGAIN_S}
        if len(self._told) < ALARMS_KEPT:
            self._told[key] = now_s
        self.alarms.append(Alarm(when_s=round(time.time(), 3), namespace=name, what=what))
        log.warning("wrong fingerprint offered", namespace=name, what=what)

    # -- ending --------------------------------------------------------------------------------------------------

    async def invalidate(
        self, name: bytes, *, fingerprint: Mapping[str, str] | None, present: Mapping[str, str] | None
    ) -> int:
        """Make all content of a namespace vanish at once; return how many names went from its top.

        When this returns nobody finds any of it, also after a power cut.

        Parameters
        ----------
        fingerprint
            The new one; None keeps the present one.
        present
            Refuse if this is not the present one; None does not ask.

        Raises
        ------
        MismatchError
            `present` is not the present one; nothing has changed.
        """
        text = None if fingerprint is None else canonical(fingerprint)
        if present is not None:
            canonical(present)
        inode, namespace = self.find(name)
        told = os.fsdecode(_checked(name))
        if present is not None and (differ := differences(decode(namespace.fingerprint), present)):
            raise MismatchError(f"{told}: another fingerprint, so nothing is invalidated: {'; '.join(differ)}")
        _, names = self._namespaces.bury(inode.ino, time.time_ns(), text)
        log.info("namespace invalidated", namespace=_checked(name), names=names, fingerprint=text)
        await self._vanished(_checked(name))
        return names

    async def _vanished(self, name: bytes) -> None:
        """See to it that a commit is everybody's truth, whoever asked for it is still there or not."""
        self._reaper.wake()
        with trio.CancelScope(shield=True):
            await self._reaper.keeper.forget_tree(ROOT_INO, name)
            await self._catalog.db.sync()

    async def remove(self, name: bytes, *, force: bool) -> int:
        """Remove a namespace and its directory; return how many names it had.

        Raises
        ------
        NotEmptyError
            It has content and `force` is not given.
        """
        inode, _ = self.find(name)
        name = _checked(name)
        if not force and self._namespaces.count_in(inode.ino):
            raise NotEmptyError(f"{os.fsdecode(name)}: has content; --force makes it vanish")
        names = self._namespaces.remove_whole(name, inode.ino, time.time_ns())
        log.info("namespace removed", namespace=name, names=names)
        await self._vanished(name)
        return names

    # -- by xattrs of the mount ----------------------------------------------------------------------------------

    def offer(self, inode: Inode, value: bytes) -> None:
        """Take the fingerprint that a client has set on a top directory: the first one, or the same again.

        Raises
        ------
        OSError
            EEXIST: it has another one, which is an alarm. ENOTEMPTY: it has content of an unknown one. EINVAL: it is no
            fingerprint. EOPNOTSUPP: this is no top directory.
        """
        name = self._top_name(inode)
        offered = parse(value)
        if not offered:
            raise fail(errno.EINVAL)
        namespace = self._namespaces.get(inode.ino)
        if namespace is not None and namespace.fingerprint:
            if differ := differences(decode(namespace.fingerprint), offered):
                self._alarm(name, namespace, "; ".join(differ))
                raise fail(errno.EEXIST)
            return
        if self._namespaces.count_in(inode.ino):
            raise fail(errno.ENOTEMPTY)
        if namespace is None:
            with self._catalog.db.transaction():
                namespace = self._put_new(inode, os.fsdecode(name), canonical(offered), {}, time.time_ns())
        else:
            namespace = replace(namespace, fingerprint=canonical(offered))
            self._namespaces.put(namespace)
        log.info("namespace made", namespace=name, fingerprint=namespace.fingerprint)

    def set_policy(self, inode: Inode, policy: str, value: bytes) -> None:
        """Take a policy that a client has set on a namespace; EINVAL for a word that it does not know."""
        self._top_name(inode)
        namespace = self._namespaces.get(inode.ino)
        if namespace is None:
            raise fail(errno.EOPNOTSUPP)
        self._set(namespace, _chosen({policy: value.decode("ascii", "replace")}))

    def _top_name(self, inode: Inode) -> bytes:
        path = self._catalog.names.path(inode.ino) if inode.is_dir else None
        if path is None or path.count(b"/") != 1 or path == b"/":
            raise fail(errno.EOPNOTSUPP)
        return path[1:]


def _checked(name: bytes) -> bytes:
    """Return the name of a top directory; `InvalidError` if it can't be one."""
    name = name.strip(b"/")
    if not is_name(name) or len(name) > NAME_BYTES_MAX:
        raise InvalidError(f"{os.fsdecode(name)!r} can't name a top directory")
    return name


def _chosen(policies: Mapping[str, str | int]) -> dict[str, str | int]:
    """Return policies, checked."""
    for policy, word in policies.items():
        if policy not in POLICIES and policy not in NUMBERS:
            raise InvalidError(f"there is no policy {policy}; there are {', '.join((*POLICIES, *NUMBERS))}")
        if policy in NUMBERS:
            _check_number(policy, word)
        elif policy in CHECKS:
            CHECKS[policy](str(word))
        elif word not in CHOICES[policy]:
            words = ", ".join(filter(None, CHOICES[policy]))
            raise InvalidError(f"{policy} is one of {words}, not {word!r}")
    return dict(policies)


def _check_number(policy: str, number: str | int) -> None:
    if policy == "priority":
        if not isinstance(number, int) or not 0 <= number <= PRIORITY_MAX:
            raise InvalidError(f"the priority is 0 to {PRIORITY_MAX}, not {number!r}")
    elif not isinstance(number, int) or not (number == 0 or BLOCK_BYTES <= number <= SIZE_MAX):
        raise InvalidError(f"{policy} is 0, or at least {BLOCK_BYTES} bytes, not {number!r}")
