"""How fast a card answers: round trips of one command, and commands a second with the ring kept full."""

from __future__ import annotations

import errno
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvdriver._vfio import ffi, lib
from kvdriver.abi import Op, Tier
from kvdriver.card import ring_fault
from kvdriver.device import SessionCreate
from kvdriver.opening import BareCard, open_bare

if TYPE_CHECKING:
    from kvdriver.address import DeviceAddress

ROUNDS: Final = 20_000
COMMANDS: Final = 1_000_000
REPEATS: Final = 5
TIMEOUT_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSpeed:
    """Medians of a card's speed, polled."""

    rtt_us: float
    mcmds: float


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
