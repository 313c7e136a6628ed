"""What the API adds to the shapes of `kvd.api.backend`: requests, envelopes, errors."""

from __future__ import annotations

from dataclasses import dataclass

from kvd.api.backend import Entry, TierUsage  # noqa: TC001  msgspec reads these annotations when the schema is made

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
    """Body of promote, demote and sync."""

    paths: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """Why a request was not done: `code` for programs, `message` for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The answer to a request that was not done, and the last line of a stream that broke off."""

    error: ErrorBody
