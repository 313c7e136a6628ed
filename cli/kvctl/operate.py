"""Promote, demote and sync: steps as they come, a bar on a terminal, a summary at the end."""

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

    from kvctl.session import Session

PAST = {"promote": "promoted", "demote": "demoted", "sync": "synced"}


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
        there = f"; {self.there} already there" if self.there else ""
        failed = f"; {units.plural(len(self.failed), 'object')} failed" if self.failed else ""
        moved = units.plural(self.done - self.there, "object")
        return f"{PAST[what]} {moved}, {units.size(self.bytes_done)}{there}{failed}"


def operate(session: Session, what: str, paths: Sequence[bytes]) -> int:
    """Run one operation to its end.

    Parameters
    ----------
    session
        The daemon, and where to print.
    what
        ``promote``, ``demote`` or ``sync``.
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
        with _bar(session) as progress, closing(_steps(session, what, paths)) as steps:
            task = progress.add_task(what, total=None, name="", bytes="")
            for step in steps:
                summary.add(step)
                _report(session, progress, task, step)
    except CtlError as error:
        broken = error
    except KeyboardInterrupt:
        if session.as_json:
            failure = {"code": "EINTR", "message": "interrupted"}
            session.document(summary.document() | {"error": failure})
        raise
    if broken is not None:
        if not summary.done and not summary.failed:
            raise broken
        if session.as_json:
            failure = {"code": broken.code, "message": str(broken)}
            session.document(summary.document() | {"error": failure})
        else:
            session.show(summary.sentence(what))
        session.complain(str(broken))
        return broken.status
    if session.as_json:
        session.document(summary.document())
    else:
        session.show(summary.sentence(what))
    return _status(summary)


def _status(summary: Summary) -> Exit:
    return exit_of_all([failure["code"] for failure in summary.failed])


def _steps(session: Session, what: str, paths: Sequence[bytes]) -> Generator[dict[str, Any]]:
    return cast("Generator[dict[str, Any]]", session.client.operate(what, paths))


def _bar(session: Session) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[bytes]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[name]}"),
        console=session.err,
        transient=True,
        disable=not session.err.is_terminal or session.as_json,
    )


def _report(session: Session, progress: Progress, task: TaskID, step: dict[str, Any]) -> None:
    progress.update(
        task,
        total=step["total"],
        completed=step["done"],
        name=escape(show(step["path"])),
        bytes=units.size(step["bytes_done"]),
    )
    if step["error"] is not None:
        session.complain_of(step["path"], step["error"])
