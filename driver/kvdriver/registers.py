"""The card's registers: what it says of itself, and the few that are written."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvdriver import abi
from kvdriver.faults import DeviceFault, FaultKind
from kvdriver.transport import Region

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdriver.transport import Transport

CAPABILITIES_MAX: Final = 64
"""A longer list goes round in circles."""
MAJOR: Final = abi.BAR0_VERSION_RESET >> abi.BAR0_VERSION_MAJOR_SHIFT
ONES32: Final = (1 << 32) - 1
ONES64: Final = (1 << 64) - 1
READY_S_MAX: Final = 5.0
"""What a reset, an enable or a quiesce may take."""
LOOK_S: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class CardDescription:
    """What a card says of itself; a mask or limit that it does not tell is 0.

    Attributes
    ----------
    version
        Major and minor number of the interface.
    operations, formats, page_sizes
        Bit n: operation n, format n, pages of 2^n bytes.
    memory_bytes
        Of the card's own tiers, by their number.
    """

    version: tuple[int, int]
    queues: int
    depth_max: int
    vectors: int
    operations: int
    formats: int
    page_sizes: int
    memory_bytes: tuple[int, ...]
    sessions_max: int
    tables_bytes_max: int
    address_last: int
    slots_max: int
    page_bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardStatus:
    """The status register, and why it shows a fault."""

    ready: bool
    enabled: bool
    quiet: bool
    fault: bool
    syndrome: str = ""


class Registers:
    """BAR0 of a card. Failures of the transport become faults of the card here.

    Raises
    ------
    DeviceFault
        From every call: `FaultKind.GONE` where the card answers all ones or not at all, `FaultKind.TIMEOUT` past a
        deadline.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"<Registers of {self._transport!r}>"

    def _read(self, offset: int, count: int) -> bytes:
        try:
            return self._transport.read(Region.REGISTERS, offset, count)
        except OSError as error:
            raise fault_of(error, f"register 0x{offset:x}") from error

    def read32(self, offset: int) -> int:
        """Read a register of 32 bits that is never all ones."""
        value = int.from_bytes(self._read(offset, 4), "little")
        if value == ONES32:
            raise DeviceFault(FaultKind.GONE, f"register 0x{offset:x} reads as all ones: the card is gone")
        return value

    def read64(self, offset: int) -> int:
        """Read a register of 64 bits, whatever it holds."""
        return int.from_bytes(self._read(offset, 8), "little")

    def write32(self, offset: int, value: int) -> None:
        """Write a register of 32 bits."""
        self._write(offset, value.to_bytes(4, "little"))

    def write64(self, offset: int, value: int) -> None:
        """Write a register of 64 bits."""
        self._write(offset, value.to_bytes(8, "little"))

    def _write(self, offset: int, data: bytes) -> None:
        try:
            self._transport.write(Region.REGISTERS, offset, data)
        except OSError as error:
            raise fault_of(error, f"register 0x{offset:x}") from error

    # -- what it says of itself ----------------------------------------------------------------------------------

    def describe(self) -> CardDescription:
        """Read magic, version and the capability list."""
        magic = self.read64(abi.BAR0_MAGIC_AT)
        if magic == ONES64:
            raise DeviceFault(FaultKind.GONE, "the card's registers read as all ones: it is gone")
        if magic != abi.BAR0_MAGIC_RESET:
            raise DeviceFault(FaultKind.UNUSABLE, f"this is no kvd card: its magic is 0x{magic:016x}")
        version = self.read32(abi.BAR0_VERSION_AT)
        major, minor = version >> abi.BAR0_VERSION_MAJOR_SHIFT, version & abi.BAR0_VERSION_MINOR_MASK
        if major != MAJOR:
            raise DeviceFault(
                FaultKind.UNUSABLE, f"the card has version {major}.{minor} of the interface, this driver knows {MAJOR}"
            )
        found = dict(self._capabilities())
        words = {identity: _WORDS[identity](body) for identity, body in found.items()}
        if abi.CapabilityId.QUEUES not in words or abi.CapabilityId.OPERATIONS not in words:
            raise DeviceFault(FaultKind.UNUSABLE, "the card does not say which queues and operations it has")
        queues, depth_max, vectors = words[abi.CapabilityId.QUEUES][:3]
        nothing = (0,) * 5
        sessions_max, tables_bytes_max, address_last, slots_max, page_bits = words.get(abi.CapabilityId.LIMITS, nothing)
        return CardDescription(
            version=(major, minor),
            queues=queues,
            depth_max=depth_max,
            vectors=vectors,
            operations=words[abi.CapabilityId.OPERATIONS][0],
            formats=words.get(abi.CapabilityId.FORMATS, nothing)[0],
            page_sizes=words.get(abi.CapabilityId.PAGE_SIZES, nothing)[0],
            memory_bytes=words.get(abi.CapabilityId.TIERS, nothing),
            sessions_max=sessions_max,
            tables_bytes_max=tables_bytes_max,
            address_last=address_last,
            slots_max=slots_max,
            page_bits=page_bits,
        )

    def _capabilities(self) -> list[tuple[abi.CapabilityId, bytes]]:
        """Follow the list; a capability of an unknown kind is passed over."""
        end = self._transport.info.region_bytes.get(Region.REGISTERS, 0)
        at = self.read32(abi.BAR0_CAPABILITIES_AT)
        found = []
        for _ in range(CAPABILITIES_MAX):
            if at % 4 or at + abi.CAPABILITY.size > end:
                raise DeviceFault(FaultKind.UNUSABLE, f"the card's capability list leads to 0x{at:x}, out of BAR0")
            head, count = self.read32(at), self.read32(at + 4)
            identity = head & abi.CAPABILITY_HEAD_ID_MASK
            if count < abi.CAPABILITY.size or at + count > end:
                raise DeviceFault(
                    FaultKind.UNUSABLE, f"capability {identity} of the card has a length of {count} bytes"
                )
            if identity in _SIZES:
                known = abi.CapabilityId(identity)
                if count < _SIZES[known]:
                    raise DeviceFault(FaultKind.UNUSABLE, f"capability {identity} of the card is too short")
                words = (self._read(at + word, 4) for word in range(0, _SIZES[known], 4))
                found.append((known, b"".join(words)))
            at = (head & abi.CAPABILITY_HEAD_NEXT_MASK) >> abi.CAPABILITY_HEAD_NEXT_SHIFT
            if not at:
                return found
        raise DeviceFault(FaultKind.UNUSABLE, f"the card's capability list has more than {CAPABILITIES_MAX} entries")

    def status(self) -> CardStatus:
        """Read the status register, and the syndrome when there is a fault."""
        word = self.read32(abi.BAR0_STATUS_AT)
        fault = bool(word & abi.BAR0_STATUS_FAULT_MASK)
        return CardStatus(
            ready=bool(word & abi.BAR0_STATUS_READY_MASK),
            enabled=bool(word & abi.BAR0_STATUS_ENABLED_MASK),
            quiet=bool(word & abi.BAR0_STATUS_QUIET_MASK),
            fault=fault,
            syndrome=self._syndrome() if fault else "",
        )

    def _syndrome(self) -> str:
        code = self.read32(abi.BAR0_SYNDROME_AT)
        queue = self.read32(abi.BAR0_SYNDROME_QUEUE_AT)
        info = self.read64(abi.BAR0_SYNDROME_INFO_AT)
        known = {each.value: each.name for each in abi.Syndrome}
        return f"{known.get(code, f'unknown syndrome {code}')}, queue {queue}, 0x{info:x}"

    # -- what is done with them ----------------------------------------------------------------------------------

    def reset(self) -> None:
        """Reset the card and wait until it is ready."""
        self.write32(abi.BAR0_CONTROL_AT, abi.BAR0_CONTROL_RESET_MASK)
        self._until(
            lambda: not self.read32(abi.BAR0_CONTROL_AT) & abi.BAR0_CONTROL_RESET_MASK and self.status().ready,
            "reset",
        )

    def enable(self, within_s: float = READY_S_MAX) -> None:
        """Let the card take commands; tables and queue are described."""
        self.write32(abi.BAR0_CONTROL_AT, abi.BAR0_CONTROL_ENABLE_MASK)

        def enabled() -> bool:
            status = self.status()
            if status.fault:
                raise DeviceFault(FaultKind.FAULTED, f"the card refuses to start: {status.syndrome}")
            return status.enabled

        self._until(enabled, "enable", within_s)

    def quiesce(self) -> None:
        """Let the card finish the command that it executes, and take no other."""
        self.write32(abi.BAR0_CONTROL_AT, abi.BAR0_CONTROL_ENABLE_MASK | abi.BAR0_CONTROL_QUIESCE_MASK)
        self._until(lambda: self.status().quiet, "quiesce")

    def _until(self, done: Callable[[], bool], what: str, within_s: float = READY_S_MAX) -> None:
        end_s = time.monotonic() + within_s
        while not done():
            if time.monotonic() > end_s:
                raise DeviceFault(FaultKind.TIMEOUT, f"the card did not {what} within {within_s:g} s")
            time.sleep(LOOK_S)


def fault_of(error: OSError, what: str) -> DeviceFault:
    """Return the fault that a failure of the transport is."""
    if isinstance(error, TimeoutError):
        return DeviceFault(FaultKind.TIMEOUT, f"{what}: the card does not answer")
    return DeviceFault(FaultKind.GONE, f"{what}: {error.strerror or error}")


def _after_head(layout: Callable[[bytes], tuple[int, ...]]) -> Callable[[bytes], tuple[int, ...]]:
    return lambda body: layout(body)[2:]


_LAYOUTS: Final = {
    abi.CapabilityId.PAGE_SIZES: abi.CAPABILITY_PAGE_SIZES,
    abi.CapabilityId.TIERS: abi.CAPABILITY_TIERS,
    abi.CapabilityId.QUEUES: abi.CAPABILITY_QUEUES,
    abi.CapabilityId.FORMATS: abi.CAPABILITY_FORMATS,
    abi.CapabilityId.OPERATIONS: abi.CAPABILITY_OPERATIONS,
    abi.CapabilityId.LIMITS: abi.CAPABILITY_LIMITS,
}
_WORDS: Final = {identity: _after_head(layout.unpack) for identity, layout in _LAYOUTS.items()}
_SIZES: Final = {identity: layout.size for identity, layout in _LAYOUTS.items()}
