"""Many cold objects below the folder of a test, and how much is done for them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvctl.benches.many import Many, fill
from kvd.catalog.database import Database
from kvdriver import InProcessDevice
from support.tiers import PAGE_BYTES, config_at
from support.yielding_device import YieldingDevice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pytest

    from kvdriver import Command, Completion, Tier


def filled(root: Path, objects: int, *, folders: int = 1, files: bool = True, nvme_dirs: int = 1) -> Many:
    """Make a state that `tiers_at` takes over."""
    config = config_at(root, nvme_dirs=nvme_dirs)
    return fill(config.daemon.state, config.nvme.dirs, objects=objects, folders=folders, files=files)


@dataclass(slots=True)
class Statements:
    """SQL statements."""

    count: int = 0


@contextmanager
def statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[Statements]:
    """Count the statements that the catalogue executes."""
    counted = Statements()
    execute = Database.execute

    def counting(self: Database, statement: str, values: tuple[object, ...] = ()) -> object:
        counted.count += 1
        return execute(self, statement, values)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "execute", counting)
        yield counted


class CountingDevice(YieldingDevice):
    """Counts commands and batches; lets others run, too."""

    def __init__(self, capacity: dict[Tier, int], *, sessions_max: int) -> None:
        super().__init__(
            InProcessDevice.open(page_bytes=PAGE_BYTES, capacity_blocks=capacity, sessions_max=sessions_max)
        )
        self.commands = 0
        self.largest = 0

    async def submit(self, commands: Sequence[Command]) -> list[Completion]:
        self.commands += len(commands)
        self.largest = max(self.largest, len(commands))
        return await super().submit(commands)
