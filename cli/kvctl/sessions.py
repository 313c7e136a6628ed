"""``kvctl session``: what lives and ends together."""

from __future__ import annotations

import re
import time
from pathlib import Path  # cyclopts reads these annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from kvctl import names, units
from kvctl.exits import CtlError, Exit, UsageError, exit_of_all
from kvctl.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

UNIT_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")

app = App(
    name="session",
    help="""Sessions: files, or directories right below a namespace, that live and end together.

A PATH names a session, or an object of one. A time is seconds, or a number with s, m, h or d.
""",
    help_format="markdown",
    version_flags=[],
)

Context = Annotated[Run, Parameter(parse=False)]
Paths = Annotated[tuple[Path, ...], Parameter(negative="")]


@app.command(name="list")
def list_(path: Path | None = None, /, *, state: str = "", ctl: Context) -> int:
    """List sessions.

    Parameters
    ----------
    path
        A directory for all at or below it; everything when none is given.
    state
        Only those in this state.
    """
    (inside,) = ctl.inside([path]) if path is not None else ctl.everything()
    lines = ctl.client.stream("session/list", {"path": names.to_wire(inside)})
    found = [each for each in lines if not state or each["state"] == state]
    if ctl.as_json:
        ctl.document({"sessions": found})
    elif found:
        ctl.show(_table(found))
    return Exit.OK


@app.command
def show(path: Path, /, *, ctl: Context) -> int:
    """Show a session: its state, what it holds where, pin, time to live, leases.

    Parameters
    ----------
    path
        A session, or an object of one.
    """
    (inside,) = ctl.inside([path])
    found = ctl.client.get("session", inside)
    if ctl.as_json:
        ctl.document(found)
    else:
        ctl.show(Text(names.show(found["session"]["path"]), "bold"), _facts(found))
    return Exit.OK


@app.command
def pin(
    paths: Paths, /, *, soft: bool = False, time_: Annotated[str, Parameter(name="--for")] = "", ctl: Context
) -> int:
    """Keep sessions in DDR, with the objects that they get later.

    Parameters
    ----------
    paths
        Sessions, or objects of some.
    soft
        Not against the end of a time to live.
    time_
        A soft pin that ends by itself after so long.
    """
    kind, for_s = ("soft", _seconds(time_)) if soft or time_ else ("hard", 0.0)
    return _pin(ctl, paths, kind, for_s, "pinned")


@app.command
def unpin(paths: Paths, /, *, ctl: Context) -> int:
    """Let pinned sessions go again.

    Parameters
    ----------
    paths
        Sessions, or objects of some.
    """
    return _pin(ctl, paths, "none", 0.0, "unpinned")


def _pin(ctl: Run, paths: Sequence[Path], kind: str, for_s: float, done: str) -> int:
    changed = 0

    def ask(path: str) -> None:
        nonlocal changed
        changed += ctl.client.post("session/pin", {"path": path, "pin": kind, "for_s": for_s})["changed"]

    failed = _each(ctl, paths, ask)
    if ctl.as_json:
        ctl.document({"changed": changed, "failed": failed})
    elif changed or not failed:
        ctl.show(f"{done} {units.plural(changed, 'object')}")
    return exit_of_all([failure["code"] for failure in failed])


@app.command
def ttl(
    paths: Paths, /, *, time_: Annotated[str, Parameter(name="--time")], refresh: bool = False, ctl: Context
) -> int:
    """Give sessions, or objects by themselves, a time to live.

    Parameters
    ----------
    paths
        Sessions, or objects of some.
    time_
        How long from now; 0: for ever.
    refresh
        Each use begins the time anew.
    """
    ttl_s = _seconds(time_)
    return _tell(
        ctl, paths, lambda path: ctl.client.post("session/ttl", {"path": path, "ttl_s": ttl_s, "refresh": refresh})
    )


@app.command
def release(paths: Paths, /, *, ctl: Context) -> int:
    """Say that sessions are not needed soon: they go to NVMe in the background.

    Parameters
    ----------
    paths
        Sessions.
    """
    return _tell(ctl, paths, lambda path: ctl.client.post("session/release", {"path": path}))


@app.command
def resume(paths: Paths, /, *, ctl: Context) -> int:
    """Say that sessions are needed soon: they come to DDR in the background.

    Parameters
    ----------
    paths
        Sessions.
    """
    return _tell(ctl, paths, lambda path: ctl.client.post("session/resume", {"path": path}))


@app.command
def prefetch(paths: Paths, /, *, ctl: Context) -> int:
    """Bring sessions to DDR in the background by a guess; a release by their client counts more.

    Parameters
    ----------
    paths
        Sessions.
    """
    return _tell(ctl, paths, lambda path: ctl.client.post("session/prefetch", {"path": path}))


@app.command
def fork(
    path: Path, new: Path, /, *, until: str = "", tokens: int | None = None, bytes_per_token: int = 0, ctl: Context
) -> int:
    """Make a session that has what another has, up to a point. What becomes of the one is nothing to the other.

    Parameters
    ----------
    path
        A session.
    new
        Where the new one is to be; nothing is there yet.
    until
        Of a directory the last block's name, or how many blocks; of a file how many bytes. A name that is a number: ./12.
    tokens
        Of a file how many tokens, as the layout of its namespace says.
    bytes_per_token
        What a token takes, where no layout says it.
    """
    wish: dict[str, Any] = {"new_path": names.to_wire(ctl.inside([new])[0])}
    if until:
        wish["count" if until.isascii() and until.isdigit() else "until"] = int(until) if until.isdigit() else until
    if tokens is not None:
        wish |= {"tokens": tokens, "bytes_per_token": bytes_per_token}
    return _tell(ctl, (path,), lambda inside: next(ctl.client.stream("session/fork", {"path": inside, **wish})))


@app.command
def close(paths: Paths, /, *, ctl: Context) -> int:
    """End sessions: their names go, and their content. Those in use stay.

    Parameters
    ----------
    paths
        Sessions.
    """
    closed: list[str] = []
    failed = _each(ctl, paths, lambda path: closed.append(ctl.client.post("session/close", {"path": path})["path"]))
    if ctl.as_json:
        ctl.document({"closed": closed, "failed": failed})
    elif closed or not failed:
        ctl.show(f"closed {units.plural(len(closed), 'session')}")
    return exit_of_all([failure["code"] for failure in failed])


@app.command
def watch(path: Path | None = None, /, *, count: int = 0, ctl: Context) -> int:
    """Print each change of state as it happens, one a line; with --json one document a line.

    Parameters
    ----------
    path
        A directory for all at or below it; everything when none is given.
    count
        End after so many; 0: never.
    """
    (inside,) = ctl.inside([path]) if path is not None else ctl.everything()
    for number, change in enumerate(ctl.client.stream("session/watch", {"path": names.to_wire(inside)}), start=1):
        if ctl.as_json:
            ctl.document(change)
        else:
            lost = f" ({change['lost']} before it were lost)" if change["lost"] else ""
            ctl.show(Text(f"{names.show(change['path'])}: {change['before']} -> {change['after']}{lost}", no_wrap=True))
        if number == count:
            break
    return Exit.OK


def _tell(ctl: Run, paths: Sequence[Path], ask: Callable[[str], dict[str, Any]]) -> int:
    """Ask of each session what answers with it, and print those."""
    found: list[dict[str, Any]] = []
    failed = _each(ctl, paths, lambda path: found.append(ask(path)))
    if ctl.as_json:
        ctl.document({"sessions": found, "failed": failed})
    elif found:
        ctl.show(_table(found))
    return exit_of_all([failure["code"] for failure in failed])


def _each(ctl: Run, paths: Sequence[Path], ask: Callable[[str], object]) -> list[dict[str, Any]]:
    """Do something to every path; one that the daemon refuses does not keep the others from it."""
    failed: list[dict[str, Any]] = []
    for path in [names.to_wire(inside) for inside in ctl.inside(paths)]:
        try:
            ask(path)
        except CtlError as error:
            if error.status in {Exit.NO_DAEMON, Exit.USAGE}:
                raise
            failed.append({"path": path, "code": error.code, "error": str(error)})
            ctl.complain_of(path, str(error))
    return failed


def _table(found: Sequence[dict[str, Any]]) -> Table:
    heads = ("STATE", "SINCE", "OPEN", "LEASES", "PIN", "TTL", "PATH")
    table = Table(*heads, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for each in found:
        table.add_row(
            each["state"],
            units.age(each["since_s"]),
            str(each["open_objects"]),
            str(each["leases"]),
            each["pin"],
            _ttl(each),
            Text(names.show(each["path"]), no_wrap=True),
        )
    return table


def _facts(found: dict[str, Any]) -> Table:
    session = found["session"]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    bytes_ = ", ".join(f"{units.size(count)} {tier}" for tier, count in sorted(found["tiers"].items()))
    end = f" until {_when(session['pin_until_s'])}" if session["pin_until_s"] else ""
    window = f"{session['window'] or 'all'} trailing and {session['sink']} first tokens, {units.size(found['given_bytes'])} given back"
    for name, told in (
        ("state", f"{session['state']}, since {units.age(session['since_s'])}"),
        ("objects", f"{found['objects']}: {bytes_ or 'nothing'}, {session['open_objects']} open, {found['hits']} hits"),
        ("chained", f"{found['chained']} say what is before them"),
        ("leases", str(session["leases"])),
        ("pin", f"{session['pin']}{end}"),
        ("ttl", _ttl(session)),
        ("priority", str(session["priority"])),
        ("window", window),
    ):
        table.add_row(f"  {name}", Text(told))
    return table


def _ttl(session: dict[str, Any]) -> str:
    if not session["ttl_s"]:
        return "-"
    return f"{units.age(session['ttl_s'])}{' after each use' if session['refresh'] else ''}"


def _when(when_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when_s))


def _seconds(text: str) -> float:
    """Return the seconds that a time is, such as ``90``, ``15m`` or ``2d``; ``""`` is none."""
    match = _DURATION.fullmatch(text or "0")
    if match is None:
        raise UsageError(f"{text}: a time is a number of seconds, or a number with s, m, h or d")
    return float(match[1]) * UNIT_S[match[2]]
