"""What the API adds to the shapes of `kvd.api.backend`: requests, envelopes, errors."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvd.api.backend import Entry, Namespace, TierUsage  # noqa: TC001  msgspec reads these annotations when the schema is made
from kvd.api.namespaces import QuotaWish

API_VERSION = 1
"""Rises when a client of the old shapes would misread the new ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Who answers: the daemon's `version`, the `api` it speaks, the `mount` it serves."""

    version: str
    api: int
    mount: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The books of every tier."""

    mount: str
    tiers: tuple[TierUsage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The names in a directory, or the one file that `path` is."""

    path: bytes
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """How many objects a pin or unpin changed."""

    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRequest:
    """Body of pin and unpin."""

    path: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PathsRequest:
    """Body of promote, demote, sync and scrub."""

    paths: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespaces:
    """Every namespace, in the order of names."""

    namespaces: tuple[Namespace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """How many names a namespace had at its top when it went."""

    names: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRequest:
    """Body of namespace/create; the policies that are not given come from ``[admission]``."""

    name: str
    fingerprint: dict[str, str] = field(default_factory=dict)
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    admit: str | None = None
    durability: str | None = None
    on_fault: str | None = None
    session: str | None = None
    format: str | None = None
    layout: str | None = None
    on_full: str | None = None
    quota: QuotaWish = field(default_factory=QuotaWish)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRequest:
    """Body of namespace/set: the policies that change."""

    name: str
    admit: str | None = None
    durability: str | None = None
    on_fault: str | None = None
    session: str | None = None
    format: str | None = None
    layout: str | None = None
    on_full: str | None = None
    quota: QuotaWish = field(default_factory=QuotaWish)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachRequest:
    """Body of namespace/attach."""

    name: str
    fingerprint: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRequest:
    """Body of namespace/remove; `force`: also with content."""

    name: str
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidateRequest:
    """Body of invalidate: the new fingerprint, and the one that must be the present one."""

    name: str
    fingerprint: dict[str, str] | None = None
    if_fingerprint: dict[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A session that was ended."""

    path: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PinRequest:
    """Body of session/pin: ``hard``, ``soft`` (for so many seconds, 0: for ever) or ``none``."""

    path: str
    pin: str
    for_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlRequest:
    """Body of session/ttl: seconds from now, 0 for ever; `refresh`: each use begins them anew."""

    path: str
    ttl_s: float
    refresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """Body of session/fork: where the new session is to be, and how far it has what the old one has; see docs/sessions.md."""

    path: str
    new_path: str
    until: str = ""
    count: int | None = None
    tokens: int | None = None
    bytes_per_token: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckRequest:
    """Body of fsck: whether to verify every page on NVMe, and whether to repair."""

    data: bool
    repair: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """Why a request was not done: `code` for programs, `message` for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The answer to a request that was not done, and the last line of a stream that broke off."""

    error: ErrorBody
