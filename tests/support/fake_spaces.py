"""Namespaces of a daemon without data: the part of `support.fake_control` that is about them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import trio

from kvd.api.backend import Invalidated, Namespace, NamespaceWish
from kvd.api.namespaces import Alarm, NamespaceQuota, Quota, TierShare
from kvd.errors import ExistsError, MismatchError, NotEmptyError, NotFoundError, OverCommittedError
from kvd.policy.fingerprint import canonical, differences

if TYPE_CHECKING:
    from collections.abc import Mapping


DDR_BYTES = 16 << 30
"""What the daemon without data has to guarantee."""


@dataclass
class FakeSpaces:
    """Namespaces by name, and the wrong fingerprints that were offered; `bug` and `fail_at` as in `FakeControl`."""

    bug: Exception | None = None
    fail_at: int = 0
    spaces: dict[bytes, Namespace] = field(default_factory=dict)
    alarms: list[Alarm] = field(default_factory=list)

    def namespaces(self) -> list[Namespace]:
        return [self.spaces[name] for name in sorted(self.spaces)]

    def namespace(self, name: bytes) -> Namespace:
        if self.bug is not None and not self.fail_at:
            raise self.bug
        found = self.spaces.get(name.strip(b"/"))
        if found is None:
            raise NotFoundError(f"{os.fsdecode(name)}: no such namespace")
        return found

    async def create_namespace(self, wish: NamespaceWish) -> Namespace:
        await trio.lowlevel.checkpoint()
        if wish.name in self.spaces:
            raise ExistsError(f"{os.fsdecode(wish.name)}: is a namespace already")
        canonical(wish.fingerprint)
        self.spaces[wish.name] = Namespace(
            name=wish.name,
            fingerprint=wish.fingerprint,
            admit=wish.admit or "all",
            durability=wish.durability or "back",
            on_fault=wish.on_fault or "eio",
            session=wish.session or "file",
            format=wish.format or "raw",
            layout=wish.layout or "",
            on_full=wish.on_full or "",
            quota=self._granted(Quota(), wish.quota.given()),
            mode=wish.mode,
            uid=wish.uid,
            gid=wish.gid,
            created_s=1_700_000_000.0,
        )
        return self.spaces[wish.name]

    async def set_namespace(self, name: bytes, policies: Mapping[str, str | int]) -> Namespace:
        await trio.lowlevel.checkpoint()
        namespace = self.namespace(name)
        numbers = {policy: policies[policy] for policy in policies if hasattr(namespace.quota, policy)}
        words = {policy: policies[policy] for policy in policies if policy not in numbers}
        self.spaces[name] = replace(namespace, **words, quota=self._granted(namespace.quota, numbers))
        return self.spaces[name]

    @staticmethod
    def _granted(quota: Quota, numbers: Mapping[str, str | int]) -> Quota:
        granted = replace(quota, **numbers)
        if granted.ddr_guaranteed_bytes > DDR_BYTES:
            raise OverCommittedError(f"ddr: more can't be guaranteed than {DDR_BYTES} bytes")
        return granted

    async def namespace_quota(self, name: bytes) -> NamespaceQuota:
        await trio.lowlevel.checkpoint()
        namespace = self.namespace(name)
        ddr = TierShare(
            tier="ddr",
            capacity_bytes=DDR_BYTES,
            guaranteed_bytes=namespace.quota.ddr_guaranteed_bytes,
            limit_bytes=namespace.quota.ddr_limit_bytes,
            used_bytes=3 << 30,
            borrowed_bytes=max(0, (3 << 30) - namespace.quota.ddr_guaranteed_bytes),
            may_take_bytes=DDR_BYTES - (3 << 30),
        )
        return NamespaceQuota(
            name=namespace.name, priority=namespace.quota.priority, on_full=namespace.on_full, tiers=(ddr,)
        )

    def attach_namespace(self, name: bytes, fingerprint: Mapping[str, str]) -> Namespace:
        self._compare(name, fingerprint)
        return self.namespace(name)

    def _compare(self, name: bytes, fingerprint: Mapping[str, str]) -> None:
        differ = "; ".join(differences(self.namespace(name).fingerprint, fingerprint))
        if differ:
            self.alarms.append(Alarm(when_s=1_700_000_000.0, namespace=os.fsdecode(name), what=differ))
            raise MismatchError(f"{os.fsdecode(name)}: another fingerprint: {differ}")

    async def remove_namespace(self, name: bytes, *, force: bool) -> int:
        await trio.lowlevel.checkpoint()
        self.namespace(name)
        if not force:
            raise NotEmptyError(f"{os.fsdecode(name)}: has content; --force makes it vanish")
        del self.spaces[name]
        return 3

    async def invalidate(
        self, name: bytes, *, fingerprint: Mapping[str, str] | None, present: Mapping[str, str] | None
    ) -> Invalidated:
        await trio.lowlevel.checkpoint()
        if present is not None:
            self._compare(name, present)
        if fingerprint is not None:
            self.spaces[name] = replace(self.namespace(name), fingerprint=dict(fingerprint))
        return Invalidated(namespace=self.namespace(name), names=3)
