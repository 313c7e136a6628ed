"""Holds what a device answered against the model of `support.engine_model`: each status, page, frame and book."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kvdriver import (
    AgeCursor,
    AgeScan,
    Command,
    Completion,
    PrefixMatch,
    QuerySession,
    QueryTier,
    SessionCreate,
    Status,
    Tier,
    Translate,
    TranslateList,
    Unshare,
    WindowAdvance,
)
from kvdriver.abi import (
    PTE_ACCESSED_MASK,
    PTE_BLOCKS_MASK,
    PTE_BLOCKS_SHIFT,
    PTE_DIRTY_MASK,
    PTE_FRAME_MASK,
    PTE_FRAME_SHIFT,
    PTE_GENERATION_MASK,
    PTE_GENERATION_SHIFT,
    PTE_SHARED_MASK,
    PTE_TIER_MASK,
    PTE_TIER_SHIFT,
    PTE_VALID_MASK,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvdriver import Device
    from support.engine_model import EngineModel, Expected, Page

GENERATIONS = 256


class EngineComparer:
    """Executes each command on the model as well; `handles` has the sessions that were made, by key."""

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.handles: dict[int, int] = {}
        self.frames: dict[int, tuple[Tier, int]] = {}
        """The device's frame for each of the model's: a page that moves between slots or is shared keeps it."""

    def compare(self, batch: Sequence[Command], completions: Sequence[Completion]) -> None:
        for command, completion in zip(batch, completions, strict=True):
            self._compare(command, completion)

    def _compare(self, command: Command, completion: Completion) -> None:
        expected = self.model.execute(command)
        assert completion.status is expected.status, command
        if expected.value is not None:
            assert completion.value == expected.value, command
        if completion.status is not Status.OK:
            return
        match command:
            case SessionCreate(key=key):
                assert completion.value not in self.model.sessions
                self.handles[key] = completion.value
                self.model.adopt(key, completion.value)
            case Translate():
                self._compare_runs(completion, expected)
            case WindowAdvance():
                assert completion.second == expected.second
                self._compare_runs(completion, expected)
            case Unshare():
                assert completion.second == expected.second
                self._compare_copies(completion, expected)
            case TranslateList():
                self._compare_list(completion, expected)
            case PrefixMatch():
                assert completion.second == expected.second
            case QuerySession(session=session):
                self._compare_session(session, completion)
            case QueryTier(tier=tier):
                self._compare_tier(tier, completion)
            case _:
                pass

    def _is_frame(self, model: int, tier: Tier, frame: int) -> None:
        assert self.frames.setdefault(model, (tier, frame)) == (tier, frame)

    def _compare_runs(self, completion: Completion, expected: Expected) -> None:
        assert completion.value == len(completion.runs)
        found = {
            run.first_page + at: (run.tier, run.blocks, run.first_frame + at)
            for run in completion.runs
            for at in range(run.count)
        }
        assert list(found) == list(expected.pages)
        for number, page in expected.pages.items():
            tier, blocks, frame = found[number]
            assert (tier, blocks) == (page.tier, page.blocks)
            self._is_frame(page.frame, tier, frame)

    def _compare_copies(self, completion: Completion, expected: Expected) -> None:
        assert completion.value == len(completion.copies)
        found = {
            run.first_page + at: (run.tier, run.blocks, run.old_frame + at, run.new_frame + at)
            for run in completion.copies
            for at in range(run.count)
        }
        assert list(found) == list(expected.pages)
        for number, page in expected.pages.items():
            tier, blocks, old, new = found[number]
            assert (tier, blocks) == (page.tier, page.blocks)
            self._is_frame(expected.old[number], tier, old)
            self._is_frame(page.frame, tier, new)

    def _compare_list(self, completion: Completion, expected: Expected) -> None:
        holders = self.model.holders()
        for entry, page in zip(completion.entries, expected.listed, strict=True):
            if page is None:
                assert entry == 0
                continue
            assert entry & PTE_VALID_MASK
            # Who is alone again may still have the bit.
            assert entry & PTE_SHARED_MASK or holders[page.frame] == 1
            self._compare_entry(entry, page)

    def _compare_entry(self, entry: int, page: Page) -> None:
        assert bool(entry & PTE_ACCESSED_MASK) == page.used
        assert bool(entry & PTE_DIRTY_MASK) == page.dirty
        assert (entry & PTE_TIER_MASK) >> PTE_TIER_SHIFT == page.tier
        assert ((entry & PTE_BLOCKS_MASK) >> PTE_BLOCKS_SHIFT) + 1 == page.blocks
        assert (entry & PTE_GENERATION_MASK) >> PTE_GENERATION_SHIFT == page.generation % GENERATIONS
        self._is_frame(page.frame, page.tier, (entry & PTE_FRAME_MASK) >> PTE_FRAME_SHIFT)

    def _compare_session(self, handle: int, completion: Completion) -> None:
        session = self.model.sessions[handle]
        told = completion.session
        assert told is not None
        assert (told.key, told.leases, told.state) == (session.key, session.leases, session.state)
        assert {slot: start for slot, start in enumerate(told.window_start) if start} == {
            slot: start for slot, start in session.window_start.items() if start
        }
        for tier in told.mapped_pages:
            pages = [page for page in session.pages() if page.tier == tier]
            assert told.mapped_pages[tier] == len(pages)
            assert told.mapped_blocks[tier] == sum(page.blocks for page in pages)
            assert told.reserved_blocks[tier] == session.reserved.get(tier, 0)

    def _compare_tier(self, tier: Tier, completion: Completion) -> None:
        told = completion.tier
        assert told is not None
        assert told.capacity_blocks == self.model.capacity[tier]
        assert told.total_frames == self.model.total_frames[tier]
        assert told.used_blocks == self.model.used_blocks(tier)
        assert told.used_frames == self.model.used_frames(tier)
        assert told.reserved_blocks == self.model.reserved_blocks(tier)

    async def scan(self, device: Device, command: AgeScan) -> None:
        """Compare a whole scan, done in parts of `count` entries and `runs_max` runs."""
        expected = self.model.scan(command)
        found = await scan_in_parts(device, command)
        assert found.keys() == expected.keys()
        for place, (tier, frame, age) in found.items():
            page, age_expected = expected[place]
            assert (tier, age) == (page.tier, age_expected), place
            self._is_frame(page.frame, tier, frame)

    async def compare_all(self, device: Device) -> None:
        """Compare all books, and what all sessions hold."""
        commands: list[Command] = [QueryTier(tier=tier) for tier in self.model.total_frames]
        for handle, session in self.model.sessions.items():
            commands.append(QuerySession(session=handle))
            for slot, pages in session.slots.items():
                commands.append(Translate(session=handle, slot=slot))
                commands.append(TranslateList(session=handle, slot=slot, pages=tuple(pages)))
        self.compare(commands, await device.submit(commands))


async def scan_in_parts(device: Device, command: AgeScan) -> dict[tuple[int, int, int], tuple[Tier, int, int]]:
    """Scan to the end; return tier, frame and age of what was reported, by session, slot and page."""
    found = {}
    while True:
        completion = await device.run(command)
        assert completion.second <= command.count
        assert completion.value == len(completion.cold) <= command.runs_max
        for run in completion.cold:
            for at in range(run.count):
                place = (run.session, run.slot, run.first_page + at)
                assert place not in found
                found[place] = (run.tier, run.first_frame + at, run.age)
        assert isinstance(completion.cursor, AgeCursor)
        if completion.cursor.done:
            return found
        command = dataclasses.replace(command, advance=False, cursor=completion.cursor)
