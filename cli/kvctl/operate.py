"""Promote, demote, sync and scrub: steps as they come, a bar on a terminal, a summary at the end."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvctl import units
from kvctl.exits import CtlError, Exit, exit_of_all
from kvctl.names import show

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from rich.progress import TaskID

    from kvctl.run import Run

PAST = {"promote": "promoted", "demote": "demoted", "sync": "synced", "scrub": "verified"}
IDLE = {"scrub": "not on NVMe"}
"""What is said of the objects that there was nothing to do for, unless they are "already there"."""


@dataclass(slots=True)
class Summary:
    """What an operation came to."""

    done: int = 0
    there: int = 0
    """Of `done`, those that had nothing to copy or move."""
    bytes_done: int = 0
    failed: list[dict[str, Any]] = field(default_factory=list)

    def add(self, step: dict[str, Any]) -> None:
        """Count a step."""
        grown = step["bytes_done"] > self.bytes_done
        self.bytes_done = step["bytes_done"]
        if step["error"] is None:
            self.done += 1
            self.there += not grown
        else:
            self.failed.append({key: step[key] for key in ("path", "code", "error")})

    def document(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        return {"done": self.done, "failed": self.failed, "bytes": self.bytes_done}

    def sentence(self, what: str) -> str:
        """Return it for people."""
        there = f"; {self.there} {IDLE.get(what, 'already there')}" if self.there else ""
        failed = f"; {units.plural(len(self.failed), 'object')} failed" if self.failed else ""
        moved = units.plural(self.done - self.there, "object")
        return f"{PAST[what]} {moved}, {units.size(self.bytes_done)}{there}{failed}"


def operate(ctl: Run, what: str, paths: Sequence[bytes]) -> int:
    """Run one operation to its end.

    Parameters
    ----------
    ctl
        The daemon, and where to print.
    what
        ``promote``, ``demote``, ``sync`` or ``scrub``.
    paths
        What to do it to, within the mount.

    Returns
    -------
    int
        The exit status.
    """
    summary = Summary()
    broken: CtlError | None = None
    try:
        with bar(ctl) as progress, closing(_steps(ctl, what, paths)) as steps:
            task = progress.add_task(what, total=None, name="", bytes="")
            for step in steps:
                summary.add(step)
                _report(ctl, progress, task, step)
    except CtlError as error:
        broken = error
    except KeyboardInterrupt:
        if ctl.as_json:
            failure = {"code": "EINTR", "message": "interrupted"}
            ctl.document(summary.document() | {"error": failure})
        raise
    if broken is not None:
        if not summary.done and not summary.failed:
            raise broken
        if ctl.as_json:
            failure = {"code": broken.code, "message": str(broken)}
            ctl.document(summary.document() | {"error": failure})
        else:
            ctl.show(summary.sentence(what))
        ctl.complain(str(broken))
        return broken.status
    if ctl.as_json:
        ctl.document(summary.document())
    else:
        ctl.show(summary.sentence(what))
    return _status(summary)


def _status(summary: Summary) -> Exit:
    return exit_of_all([failure["code"] for failure in summary.failed])


def _steps(ctl: Run, what: str, paths: Sequence[bytes]) -> Generator[dict[str, Any]]:
    return cast("Generator[dict[str, Any]]", ctl.client.operate(what, paths))


def bar(ctl: Run) -> Progress:
    """Make the progress bar of a long operation; its tasks have the fields `name` and `bytes`."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[bytes]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[name]}"),
        console=ctl.err,
        transient=True,
        disable=not ctl.err.is_terminal or ctl.as_json,
    )


def _report(ctl: Run, progress: Progress, task: TaskID, step: dict[str, Any]) -> None:
    progress.update(
        task,
        total=step["total"],
        completed=step["done"],
        name=escape(show(step["path"])),
        bytes=units.size(step["bytes_done"]),
    )
    if step["error"] is not None:
        ctl.complain_of(step["path"], step["error"])
