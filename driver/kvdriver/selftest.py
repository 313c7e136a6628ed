"""Does a card work? Asked without the daemon, on tables of its own."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from kvdriver.abi import Format, Op, Status, Tier
from kvdriver.commands import (
    Gather,
    Map,
    MapRun,
    QuerySession,
    Remap,
    Scatter,
    SessionCreate,
    SessionDestroy,
    Transfer,
    Translate,
    Unmap,
)
from kvdriver.device import EngineError
from kvdriver.faults import DeviceFault
from kvdriver.memory import SharedMemory
from kvdriver.opening import BareCard, open_bare
from kvdriver.registers import Registers

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdriver.address import DeviceAddress

PAGE_BYTES: Final = 1 << 16
BLOCKS: Final = PAGE_BYTES // 4096
CAPACITY: Final = {Tier.DDR: 1 << 16, Tier.NVME: 1 << 18}
KEY: Final = 0x5E1F7E57
PAGES: Final = 1000
GAP: Final = 3
"""Every third page stays unmapped, so that there are many runs."""
LIVE, COPY = 0, 1
TIER_BYTES: Final = 64 << 20
MOVED_BYTES: Final = 100_000
"""From one page into the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that was tried, and what came of it."""

    name: str
    passed: bool
    told: str


class _WrongError(Exception):
    """A step found something else than it must."""


def inspect(address: DeviceAddress) -> dict[str, Any]:
    """Return what a card says of itself; changes nothing.

    Raises
    ------
    DeviceFault
        If it can't be opened or is no kvd card.
    """
    from kvdriver.vfio import VfioTransport  # noqa: PLC0415

    transport = VfioTransport.open(address)
    try:
        registers = Registers(transport)
        description = registers.describe()
        told = asdict(description)
        told["version"] = ".".join(map(str, description.version))
        told["operations"] = [op.name for op in Op if description.operations >> op & 1]
        told["formats"] = [each.name for each in Format if description.formats >> each & 1]
        told["page_sizes"] = [1 << bit for bit in range(64) if description.page_sizes >> bit & 1]
        status = registers.status()
        info = transport.info
        return {
            "address": str(address),
            "transport": info.name,
            "vendor": f"{info.vendor:04x}",
            "device": f"{info.device:04x}",
            "mappings_max": info.mappings_max,
            "enabled": status.enabled,
            "fault": status.syndrome,
            **told,
        }
    finally:
        transport.close()


async def selftest(address: DeviceAddress, report: Callable[[Step], None]) -> None:
    """Try a card out, telling each step; the first that fails is the last."""
    name = "open"
    try:
        device = await open_bare(address, page_bytes=PAGE_BYTES, capacity_blocks=CAPACITY, sessions_max=64)
    except (DeviceFault, OSError) as error:
        report(Step(name=name, passed=False, told=str(error)))
        return
    assert isinstance(device, BareCard)
    trial = _Trial(device)
    try:
        report(Step(name=name, passed=True, told=device.capabilities.transport))
        for name, step in trial.steps():
            report(Step(name=name, passed=True, told=await step()))
    except (DeviceFault, EngineError, _WrongError, OSError) as error:
        report(Step(name=name, passed=False, told=str(error)))
    finally:
        device.close()


class _Trial:
    def __init__(self, device: BareCard) -> None:
        self._device = device
        self._session = 0

    def steps(self) -> list[tuple[str, Callable[[], Any]]]:
        return [
            ("capabilities", self._capabilities),
            ("session", self._create),
            ("map", self._map),
            ("translate", self._translate),
            ("bytes", self._bytes),
            ("remap", self._remap),
            ("refusal", self._refusal),
            ("unmap", self._unmap),
            ("destroy", self._destroy),
            ("tables", self._tables),
        ]

    async def _capabilities(self) -> str:
        description = self._device.description
        count = description.operations.bit_count()
        return f"{description.queues} queues of {description.depth_max}, {count} operations"

    async def _create(self) -> str:
        self._session = (await self._device.run(SessionCreate(key=KEY))).value
        told = (await self._device.run(QuerySession(session=self._session))).session
        if told is None or told.key != KEY:
            raise _WrongError("the session has another key than it was given")
        return f"handle 0x{self._session:x}"

    async def _map(self) -> str:
        runs = tuple(MapRun(first_page=GAP * n, count=GAP - 1, blocks=BLOCKS) for n in range(PAGES // GAP))
        mapped = (await self._device.run(Map(session=self._session, slot=LIVE, tier=Tier.DDR, runs=runs))).value
        self._expect(mapped, len(runs) * (GAP - 1), "pages mapped")
        return f"{mapped} pages in {len(runs)} runs"

    async def _translate(self) -> str:
        runs = (await self._device.run(Translate(session=self._session, slot=LIVE))).runs
        theirs = await self._device.tables_say(Translate(session=self._session, slot=LIVE))
        if runs != theirs:
            raise _WrongError("the card translates to other runs than the tables hold")
        self._expect(sum(run.count for run in runs), PAGES // GAP * (GAP - 1), "pages translated")
        return f"{len(runs)} runs, as the tables say"

    async def _bytes(self) -> str:
        """Scatter bytes over pages and gather them again, through memory that only the device's tables make sense of."""
        pages = SharedMemory("kvd-tier", TIER_BYTES)
        host = SharedMemory("kvd-host", 2 * MOVED_BYTES)
        device = self._device
        try:
            await device.map_memory(pages)
            await device.map_memory(host)
            await device.tier_memory(Tier.DDR, pages)
            host.view[:MOVED_BYTES] = bytes(range(1, 256)) * (MOVED_BYTES // 255) + bytes(MOVED_BYTES % 255)
            place = {"session": self._session, "slot": LIVE, "count": GAP - 1}
            for command, at in ((Scatter, 0), (Gather, MOVED_BYTES)):
                transfer = Transfer(host=host.address + at, host_bytes=MOVED_BYTES)
                moved = (await device.run(command(**place, transfer=transfer))).value
                self._expect(moved, MOVED_BYTES, "bytes moved")
            if host.view[:MOVED_BYTES] != host.view[MOVED_BYTES : 2 * MOVED_BYTES]:
                raise _WrongError("other bytes came back than were sent")
            return f"{MOVED_BYTES} bytes there and back, the same"
        finally:
            for memory in (host, pages):
                with contextlib.suppress(DeviceFault, OSError):
                    await device.unmap_memory(memory)
                memory.close()

    async def _remap(self) -> str:
        keep = Remap(session=self._session, slot=LIVE, tier=Tier.NVME, other_slot=COPY, keep=True)
        moved = (await self._device.run(keep)).value
        self._expect(moved, PAGES // GAP * (GAP - 1), "pages moved")
        return f"{moved} pages to nvme"

    async def _refusal(self) -> str:
        [completion] = await self._device.submit([SessionCreate(key=KEY)])
        if completion.status is not Status.EXISTS or completion.value != self._session:
            raise _WrongError(f"a key that exists was answered with {completion.status.name}")
        return "a second session of the key is refused"

    async def _unmap(self) -> str:
        freed = (await self._device.run(Unmap(session=self._session, slot=COPY))).value
        self._expect(freed, PAGES // GAP * (GAP - 1), "pages freed")
        return f"{freed} pages"

    async def _destroy(self) -> str:
        freed = (await self._device.run(SessionDestroy(session=self._session))).value
        return f"{freed} pages freed with it"

    async def _tables(self) -> str:
        faults = await self._device.check()
        if faults:
            raise _WrongError(faults[0])
        self._expect(self._device.statistics().mapped_pages, 0, "pages left")
        return "consistent, nothing left"

    @staticmethod
    def _expect(found: int, wanted: int, what: str) -> None:
        if found != wanted:
            raise _WrongError(f"{found} {what}, {wanted} expected")
