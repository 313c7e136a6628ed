"""The page-table engine in this process: the embedded default, and the reference for every other device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from kvdriver._engine import ffi, lib
from kvdriver._wire import TRANSLATE_RUNS, Batch
from kvdriver.abi import Status, Tier
from kvdriver.bulk import Bulk
from kvdriver.commands import Command, Map, Remap, SessionDestroy, Share, Translate, Unmap, Unshare, WindowAdvance
from kvdriver.device import Capabilities, Completion, Device, DeviceStatistics, EngineError, Run
from kvdriver.losses import LOSSES_MAX, Loss, Repair
from kvdriver.results import check_result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvdriver.device import Mappable

SESSIONS_MAX: Final = 1 << 20
ARENA_BYTES: Final = 16 << 30
"""Address space for the tables; memory is used only as they grow."""

_CHECK_TEXT_BYTES: Final = 64 << 10
_SENTENCE_BYTES_MAX: Final = 256
"""As recovery words a loss; it keeps below 200."""
_CHANGES_PAGES: Final = (Map, Remap, SessionDestroy, Share, Unmap, Unshare, WindowAdvance)


def check_tables(engine: Any) -> list[str]:
    """Check the tables of a C engine against each other; one sentence for each fault found."""
    text = ffi.new("char[]", _CHECK_TEXT_BYTES)
    count = lib.kvd_engine_check(engine, text, _CHECK_TEXT_BYTES)
    faults: list[str] = ffi.string(text).decode().splitlines()
    if count > len(faults):
        faults.append(f"and {count - len(faults)} more faults")
    return faults


def recover_tables(engine: Any) -> Repair:
    """Repair the tables of a C engine that nobody else uses.

    Raises
    ------
    OSError
        If they can't be repaired.
    """
    found = ffi.new("struct kvd_engine_loss[]", LOSSES_MAX)
    text = ffi.new("char[]", LOSSES_MAX * _SENTENCE_BYTES_MAX)
    result = ffi.new("struct kvd_engine_recovery *", {"losses": found, "losses_max": LOSSES_MAX})
    result.text, result.text_bytes = text, len(text)
    check_result(lib.kvd_engine_recover(engine, result), "repair of the engine's tables")
    losses = tuple(
        Loss(
            session=loss.session,
            slot=loss.slot if loss.slot < lib.KVD_ENGINE_SLOTS_MAX else None,
            first_page=loss.first_page,
            count=loss.count,
            told=told,
        )
        for loss, told in zip(found, ffi.string(text).decode().splitlines(), strict=False)
    )
    return Repair(
        losses=losses,
        more=result.losses_count - len(losses),
        finished=bool(result.finished),
        undone=bool(result.undone),
    )


def segments(commands: Sequence[Command]) -> Iterator[Sequence[Command]]:
    """Cut a batch where a TRANSLATE that may have to be asked again is followed by a change of pages."""
    if isinstance(commands, Bulk):
        yield commands
        return
    start = 0
    open_translate = False
    for number, command in enumerate(commands):
        if open_translate and isinstance(command, _CHANGES_PAGES):
            yield commands[start:number]
            start = number
            open_translate = False
        if type(command) is Translate and command.count > TRANSLATE_RUNS:
            open_translate = True
    yield commands[start:]


class InProcessDevice(Device):
    """A `Device` that is a C library: a batch is one call, and answered when the call returns.

    Make one with `open`. Commands are executed in the calling thread; one thread at a time may call.
    """

    def __init__(self, engine: Any, capabilities: Capabilities) -> None:
        self._engine: Any | None = engine
        self._capabilities = capabilities
        self.retries = 0
        """Commands, here or on a card with these tables, that repeat another one and are not counted."""

    @classmethod
    def open(
        cls,
        *,
        page_bytes: int,
        capacity_blocks: Mapping[Tier, int],
        sessions_max: int = SESSIONS_MAX,
        arena_bytes: int = ARENA_BYTES,
        arena_fd: int = -1,
    ) -> Self:
        """Make an engine with empty tables.

        Parameters
        ----------
        page_bytes
            Bytes of a page: a power of two, 4 KiB to 2 MiB.
        capacity_blocks
            What each tier may hold, in blocks of 4 KiB; a tier that is not named, or with 0, is absent. A tier has
            as many frames as it has blocks now, also after a `Resize`.
        sessions_max
            Session contexts at most.
        arena_bytes
            Address space for the tables.
        arena_fd
            A file to hold the tables, whose content is lost; -1: anonymous memory. The caller keeps the descriptor.

        Raises
        ------
        OSError
            If the configuration is refused or memory is not to be had.
        ValueError
            If a number does not fit its field.
        """
        config = ffi.new("struct kvd_engine_config *")
        try:
            config.page_bytes = page_bytes
            config.sessions_max = sessions_max
            config.arena_bytes = arena_bytes
            config.arena_fd = arena_fd
            for tier, blocks in capacity_blocks.items():
                config.capacity_blocks[tier] = blocks
        except OverflowError as error:
            raise ValueError(f"page-table engine: {error}") from error
        out = ffi.new("kvd_engine **")
        check_result(lib.kvd_engine_init(config, out), "page-table engine")
        capabilities = Capabilities(
            page_bytes=page_bytes,
            tiers=tuple(tier for tier in Tier if capacity_blocks.get(tier, 0)),
            sessions_max=sessions_max,
            slots_max=lib.KVD_ENGINE_SLOTS_MAX,
            transport="in-process",
        )
        return cls(ffi.gc(out[0], lib.kvd_engine_fini), capabilities)

    @classmethod
    def attach(cls, before: InProcessDevice, *, arena_fd: int) -> Self:
        """Take a copy of the tables of `before`, whose counts go on; to be `take`n before commands are executed.

        Raises
        ------
        OSError
            If there are no sound tables in the file.
        """
        config = ffi.new("struct kvd_engine_config *", {"flags": lib.KVD_ENGINE_ATTACH, "arena_fd": arena_fd})
        out = ffi.new("kvd_engine **")
        check_result(lib.kvd_engine_init(config, out), "page-table engine")
        device = cls(ffi.gc(out[0], lib.kvd_engine_fini), before.capabilities)
        device.retries = before.retries
        return device

    def _opened(self) -> Any:
        if self._engine is None:
            raise ValueError("the device is closed")
        return self._engine

    def __repr__(self) -> str:
        if self._engine is None:
            return "<InProcessDevice closed>"
        counts = self.statistics()
        return (
            f"<InProcessDevice open, {counts.sessions} sessions, {counts.mapped_pages} pages, "
            f"{counts.table_bytes} bytes of tables>"
        )

    @property
    def capabilities(self) -> Capabilities:
        """What the device can do."""
        self._opened()
        return self._capabilities

    async def submit(self, commands: Sequence[Command]) -> list[Completion]:
        """Execute a batch in order; a refused command does not stop those after it.

        There is no checkpoint in it: what a caller does around a submit is one critical section.

        Raises
        ------
        ValueError
            If the device is closed, or a number does not fit its field; then no command was executed.
        """
        engine = self._opened()
        batches = [Batch(segment) for segment in segments(commands)]
        completions: list[Completion] = []
        for batch in batches:
            batch.submit(engine)
            if isinstance(batch.commands, Bulk):
                completions += batch.completions()
                continue
            completions += (
                self.translate_again(command, completion)
                if completion.status is Status.BUFFER_SMALL and type(command) is Translate
                else completion
                for command, completion in zip(batch.commands, batch.completions(), strict=True)
            )
        return completions

    def translate_again(self, command: Translate, completion: Completion) -> Completion:
        """Execute a TRANSLATE once more, with the room that it asked for."""
        batch = Batch([command], translate_runs=completion.value)
        batch.submit(self._opened())
        self.retries += 1
        return batch.completions()[0]

    def give_memory(self, tier: Tier, *, address: int, size_bytes: int) -> None:
        """Say where `Gather` and `Scatter` find a tier's frames: frame n at `address` and n pages.

        Parameters
        ----------
        tier
            Which.
        address
            Of memory in this process, which must stay until the device is closed.
        size_bytes
            Its length; 0: the tier has none.

        Raises
        ------
        OSError
            If there is no such tier.
        """
        check_result(lib.kvd_engine_tier_memory(self._opened(), tier, address, size_bytes), f"memory of {tier.name}")

    async def map_memory(self, memory: Mappable) -> None:
        """Let the device reach a memory: it reaches all of this process."""
        del memory
        self._opened()

    async def unmap_memory(self, memory: Mappable) -> None:
        """Take a memory back; nothing is asked of it between two submits."""
        del memory
        self._opened()

    async def tier_memory(self, tier: Tier, memory: Mappable) -> None:
        """Say where `Gather` and `Scatter` find a tier's frames; see `give_memory`."""
        self.give_memory(tier, address=memory.address, size_bytes=memory.bytes)

    async def check(self) -> list[str]:
        """Check the tables against each other; one sentence for each fault found."""
        return check_tables(self._opened())

    async def reset(self) -> None:
        """Drop every session and page; capacities stay."""
        check_result(lib.kvd_engine_reset(self._opened()), "page-table engine")

    def peek(self, command: Translate) -> tuple[Run, ...]:
        """Find the runs of a range without executing a command: also while a card has the tables.

        Raises
        ------
        EngineError
            If the command is refused, or each try met a change.
        """
        engine = self._opened()
        runs = TRANSLATE_RUNS
        while True:
            batch = Batch([command], translate_runs=runs)
            batch.read(engine)
            [completion] = batch.completions()
            if completion.status is Status.OK:
                return completion.runs
            if completion.status is not Status.BUFFER_SMALL:
                raise EngineError(completion.status, command)
            runs = completion.value

    # -- tables that a card works on in between -------------------------------------------------------------------

    def leave(self) -> None:
        """Leave the tables to a card; until `take` no command is executed here."""
        lib.kvd_engine_leave(self._opened())

    def take(self) -> Repair:
        """Take the tables back from a card that reaches them no more; repair them if it did not leave them in order.

        Returns
        -------
        Repair
            What could not be repaired and was given up.

        Raises
        ------
        OSError
            If the tables can't be repaired.
        """
        engine = self._opened()
        if not lib.kvd_engine_return(engine):
            return Repair()
        return recover_tables(engine)

    def repair(self) -> Repair:
        """Repair the tables where a check has found a fault; say what had to be given up.

        Raises
        ------
        OSError
            If the tables can't be repaired.
        """
        return recover_tables(self._opened())

    def sequence(self) -> int:
        """Return how many commands were executed since the tables were made, here or by a card."""
        return int(lib.kvd_engine_sequence(self._opened()))

    def journal(self, sequence: int) -> Any:
        """Return how the command with that sequence ended, a `struct kvd_abi_cpl`.

        Raises
        ------
        OSError
            ENOENT: it is not executed, or too long ago.
        """
        out = ffi.new("struct kvd_abi_cpl *")
        check_result(lib.kvd_engine_completion(self._opened(), sequence, out), f"journal of command {sequence}")
        return out[0]

    def statistics(self) -> DeviceStatistics:
        """Return the counters."""
        stats = ffi.new("struct kvd_engine_stats *")
        lib.kvd_engine_stats(self._opened(), stats)
        return DeviceStatistics(
            commands=stats.commands - self.retries,
            refused=stats.refused - self.retries,
            refused_transitions=stats.refused_transitions,
            sessions=stats.sessions,
            table_bytes=stats.table_bytes,
            mapped_pages=stats.mapped_pages,
        )

    def close(self) -> None:
        """Release the device; further calls raise `ValueError`."""
        if self._engine is not None:
            ffi.release(self._engine)
            self._engine = None
