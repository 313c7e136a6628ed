"""How fast a card answers: round trips of one command, and commands a second with the ring kept full."""

from __future__ import annotations

import contextlib
import errno
import os
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from kvdriver import cardmodel
from kvdriver._vfio import ffi, lib
from kvdriver.abi import Op, Tier
from kvdriver.address import DeviceAddress
from kvdriver.bench import Measured
from kvdriver.card import ring_fault
from kvdriver.commands import SessionCreate
from kvdriver.opening import BareCard, open_bare

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS: Final = 20_000
COMMANDS: Final = 400_000
REPEATS: Final = 5
TIMEOUT_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSpeed:
    """Medians of a card's speed, polled."""

    rtt_us: float
    mcmds: float


def measure_model() -> list[Measured]:
    """Measure a card in a process of its own over vfio-user; nothing where ``kvd-card`` is not installed.

    Raises
    ------
    DeviceFault
        If the card fails.
    OSError
        If it can't be started.
    """
    if cardmodel.program() is None:
        return []
    with tempfile.TemporaryDirectory(prefix="kvd-card-") as folder:
        socket = Path(folder) / "card.sock"
        process = cardmodel.start(socket)
        try:
            cardmodel.until_listening(process, socket)
            with _apart(process.pid):
                speed = trio.run(measure, DeviceAddress(scheme="vfio-user", place=str(socket)))
        finally:
            cardmodel.stop(process)
    return [
        Measured(
            key="vfio_user_rtt_us",
            what="round trip of one command to a card in another process, polled",
            value=speed.rtt_us,
            unit="us",
            bar=30,
            at_most=True,
        ),
        Measured(
            key="vfio_user_mcmds",
            what="commands to a card in another process, its ring kept full, a processor each",
            value=speed.mcmds,
            unit="M commands/s",
            bar=1,
        ),
    ]


@contextlib.contextmanager
def _apart(pid: int) -> Iterator[None]:
    """Give this thread and another process a processor each, where there are two: both watch memory without a pause."""
    ours = os.sched_getaffinity(0)
    first, last = min(ours), max(ours)
    if first == last:
        yield
        return
    os.sched_setaffinity(pid, {last})
    os.sched_setaffinity(0, {first})
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)


async def measure(address: DeviceAddress, *, rounds: int = ROUNDS, commands: int = COMMANDS) -> RingSpeed:
    """Measure the card at an address, with the cheapest command that there is; nobody else may be using it.

    Raises
    ------
    DeviceFault
        If it can't be opened or fails.
    """
    device = await open_bare(address, page_bytes=1 << 16, capacity_blocks={Tier.DDR: 1 << 12}, sessions_max=1)
    assert isinstance(device, BareCard)
    try:
        session = (await device.run(SessionCreate(key=1))).value
        command = ffi.new("struct kvd_abi_cmd *", {"op": Op.LEASE, "session": session})
        rtt_us, mcmds = [], []
        for _ in range(REPEATS):
            each_ns = ffi.new("uint64_t[]", rounds)
            _check(lib.kvd_ring_bench_rtt(device.ring, command, rounds, each_ns, TIMEOUT_NS))
            rtt_us.append(statistics.median(each_ns) / 1000)
            total_ns = ffi.new("uint64_t *")
            _check(lib.kvd_ring_bench_batched(device.ring, command, commands, total_ns, TIMEOUT_NS))
            mcmds.append(commands * 1000 / total_ns[0])
        return RingSpeed(rtt_us=statistics.median(rtt_us), mcmds=statistics.median(mcmds))
    finally:
        device.close()


def _check(result: int) -> None:
    if result == -errno.EIO:
        raise OSError(errno.EIO, "the card refused the command")
    if result < 0:
        raise ring_fault(result)
