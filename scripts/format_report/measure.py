"""What is measured of one format: the whole way through kvd's own C code, and the model's judgement."""

from __future__ import annotations

import ctypes
import math
import os
import statistics
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvd.format.model import Kind, Role
from kvd.format.plan import Policy
from kvd.format.store import encode, open_stored, plan_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from format_report.model import Model

ROUNDS = 3
"""Of each timing; the fastest counts, for whatever else runs can only slow one down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A row of the table."""

    name: str
    policy: Policy


FORMATS = (
    Format(name="raw", policy=Policy(keys=Kind.RAW, values=Kind.RAW)),
    Format(name="zstd", policy=Policy(keys=Kind.ZSTD, values=Kind.ZSTD)),
    Format(name="fp8-e4m3", policy=Policy(keys=Kind.E4M3, values=Kind.E4M3)),
    Format(name="fp8-e5m2", policy=Policy(keys=Kind.E5M2, values=Kind.E5M2)),
    Format(name="int8", policy=Policy(keys=Kind.INT8, values=Kind.INT8)),
    Format(name="int8 K, int4 V", policy=Policy(keys=Kind.INT8, values=Kind.INT4)),
    Format(name="int4 K, int8 V", policy=Policy(keys=Kind.INT4, values=Kind.INT8)),
    Format(name="int4", policy=Policy(keys=Kind.INT4, values=Kind.INT4)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One format on one text.

    Attributes
    ----------
    relative_l2, most
        By role; without roles whose values are exact.
    exact
        Whether the object came back bit by bit.
    agree, tokens
        At how many of the tokens the likeliest next one is the same as with the unchanged cache.
    nll
        Mean over the tokens, in nats.
    encode_s, decode_s
        Of the fastest round, between files in memory.
    """

    object_bytes: int
    stored_bytes: int
    relative_l2: dict[Role, float]
    most: dict[Role, float]
    exact: bool
    agree: int
    tokens: int
    nll: float
    encode_s: float
    decode_s: float


@dataclass(kw_only=True)
class Row:
    """One format on all texts."""

    name: str
    measured: list[Measured] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """How many times smaller."""
        return sum(m.object_bytes for m in self.measured) / sum(m.stored_bytes for m in self.measured)

    @property
    def exact(self) -> bool:
        """Whether all came back bit by bit."""
        return all(m.exact for m in self.measured)

    @property
    def agreement(self) -> float:
        """Share of tokens after which the likeliest next one is the same."""
        return sum(m.agree for m in self.measured) / sum(m.tokens for m in self.measured)

    @property
    def perplexity(self) -> float:
        """Over the tokens of all texts."""
        return math.exp(sum(m.nll * m.tokens for m in self.measured) / sum(m.tokens for m in self.measured))

    def relative_l2(self, role: Role) -> float:
        """Return the mean over the texts."""
        return statistics.fmean(m.relative_l2.get(role, 0.0) for m in self.measured)

    def most(self, role: Role) -> float:
        """Return the largest difference in any text."""
        return max(m.most.get(role, 0.0) for m in self.measured)

    def encode_gb_s(self) -> float:
        """Return GB/s of the object."""
        return sum(m.object_bytes for m in self.measured) / sum(m.encode_s for m in self.measured) / 1e9

    def decode_gb_s(self) -> float:
        """Return GB/s of the object."""
        return sum(m.object_bytes for m in self.measured) / sum(m.decode_s for m in self.measured) / 1e9


@contextmanager
def _memory() -> Iterator[int]:
    fd = os.memfd_create("kvd-format-report")
    try:
        yield fd
    finally:
        os.close(fd)


def _fastest(run: list[float]) -> float:
    return min(run)


def memcpy_gb_s(file_bytes: int) -> float:
    """Return GB/s of a copy in memory of this size, memory that was touched before."""
    source, target = (ctypes.create_string_buffer(file_bytes) for _ in range(2))
    ctypes.memmove(target, source, file_bytes)
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        ctypes.memmove(target, source, file_bytes)
        times.append(time.perf_counter() - begin)
    return file_bytes / _fastest(times) / 1e9


def measure(
    each: Format, object_file: Path, back: Path, model: Model, top: list[int] | None
) -> tuple[Measured, list[int]]:
    """Measure one format on one text.

    Parameters
    ----------
    object_file
        The cache, as the model wrote it.
    back
        Where to write what comes back.
    top
        The likeliest tokens with the unchanged cache; None: this is the unchanged cache.
    """
    with ExitStack() as stack:
        object_fd = os.open(object_file, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, object_fd)
        planned = plan_file(object_fd, each.policy)
        stored_fd, back_fd = stack.enter_context(_memory()), stack.enter_context(_memory())
        encode_s, decode_s = [], []
        for _ in range(ROUNDS + 1):  # the first touches the memory
            begin = time.perf_counter()
            report = encode(object_fd, stored_fd, planned)
            encode_s.append(time.perf_counter() - begin)
            with open_stored(stored_fd) as stored:
                begin = time.perf_counter()
                stored.decode(back_fd)
                decode_s.append(time.perf_counter() - begin)
        given_back = os.pread(back_fd, report.object_bytes + 1, 0)
        back.write_bytes(given_back)
    chosen, nll = model.judge(back)
    reference = chosen if top is None else top
    return Measured(
        object_bytes=report.object_bytes,
        stored_bytes=report.stored_bytes,
        relative_l2={role: error.relative_l2 for role, error in report.errors.items()},
        most={role: error.most for role, error in report.errors.items()},
        exact=given_back == object_file.read_bytes(),
        agree=sum(a == b for a, b in zip(chosen, reference, strict=True)),
        tokens=len(chosen),
        nll=statistics.fmean(nll),
        encode_s=_fastest(encode_s[1:]),
        decode_s=_fastest(decode_s[1:]),
    ), chosen
