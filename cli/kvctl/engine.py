"""``kvctl engine``: the page-table engine's tables, without a daemon."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from kvctl import units
from kvctl.exits import CtlError, Exit
from kvctl.names import show
from kvctl.run import Run
from kvdriver.enginefsck import Findings, TablesError, Trouble, fsck

if TYPE_CHECKING:
    from collections.abc import Iterator

_STATUSES: Final = {Trouble.IN_USE: Exit.BUSY}

app = App(name="engine", help="The page-table engine's tables.", help_format="markdown", version_flags=[])

Context = Annotated[Run, Parameter(parse=False)]
File = Annotated[Path, Parameter(name="FILE")]


def _use(found: Findings) -> str | None:
    """Say what is known of who uses the tables."""
    if found.holders:
        users = ", ".join(f"{user.name} (process {user.pid})" for user in found.holders)
        return f"open in {users}" + ("; in use, or who used them died" if found.in_use else "")
    if not found.in_use:
        return None
    if found.unseen:
        seen = f"other processes that could not be looked at: {found.unseen}"
        return f"not left in order: in use, or who used them died; {seen}"
    return "not left in order: who used them died"


def _done(found: Findings) -> Iterator[str]:
    """Say what the repair did."""
    assert found.repair is not None
    if found.repair.finished:
        yield "the command that was half done is brought to its end"
    if found.repair.undone:
        yield "the command that was half done is taken back"
    for loss in found.repair.losses:
        yield f"given up: {loss}"
    for fault in found.left:
        yield f"not repaired: {fault}"


def _verdict(found: Findings) -> str:
    if found.repair is None:
        return units.plural(len(found.faults), "fault") if found.faults else "clean"
    if found.left:
        return f"not repaired: {units.plural(len(found.left), 'fault')}"
    losses = len(found.repair.losses)
    if losses:
        return f"repaired; {losses} {'loss' if losses == 1 else 'losses'}"
    return "repaired, nothing lost"


def _lines(path: Path, found: Findings) -> Iterator[str]:
    yield (
        f"{show(str(path))}: pages of {units.size(found.page_bytes)}, {units.plural(found.sessions, 'session')}, "
        f"{units.plural(found.mapped_pages, 'page')} mapped, {units.plural(found.commands, 'command')} executed"
    )
    if use := _use(found):
        yield use
    yield from found.faults
    if found.repair is not None:
        yield from _done(found)
    yield _verdict(found)


def _document(path: Path, found: Findings) -> dict[str, Any]:
    return {"file": str(path), "result": _verdict(found), "sound": found.sound} | asdict(found)


@app.command(name="fsck")
def fsck_(
    file: File,
    /,
    *,
    repair: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    ctl: Context,
) -> int:
    """Check the engine's tables in a file against each other. Asks no daemon, and writes nothing without --repair.

    Exit status: 0 consistent, or repaired without a loss; 1 faults, or a loss; 2 no tables, of another version, or not
    readable; 5 in use.

    Parameters
    ----------
    file
        Where the tables are; also /proc/PID/fd/N.
    repair
        Finish or take back the command at which who used them died, cut out what is damaged. Refused while another
        process has the file open.
    """
    try:
        found = fsck(file, repair=repair)
    except TablesError as error:
        raise CtlError(str(error), _STATUSES.get(error.trouble, Exit.USAGE), error.trouble.name) from error
    if ctl.as_json:
        ctl.document(_document(file, found))
    else:
        ctl.show(*_lines(file, found))
    return Exit.OK if found.sound else Exit.FAILED
