"""The commands of ``kvctl``."""

from __future__ import annotations

import os
from importlib.metadata import version as package_version
from pathlib import Path  # cyclopts reads these annotations
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import App, CycloptsError, Group, Parameter
from rich.text import Text

from kvctl import device, engine, names, tables, units
from kvctl.bench import bench
from kvctl.client import Client
from kvctl.exits import CtlError, Exit, exit_of_all
from kvctl.operate import operate
from kvctl.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEFAULT_SOCKET: Final = "/run/kvd/kvd.sock"

HELP: Final = """Ask a running kvd daemon, and tell it what to do.

A PATH is a path below the mount point, absolute or from the working directory. Symbolic links are not followed.

Exit status:

- 0: done
- 1: failed, wholly or for some objects in different ways
- 2: usage
- 3: no daemon
- 4: no such name
- 5: busy: leased, or too many operations
- 6: no space
- 7: damaged data
- 130: interrupted
"""

VERSION: Final = package_version("kvd")

app = App(
    name="kvctl",
    help=HELP,
    help_format="markdown",
    version=f"kvctl {VERSION}",
    version_flags=["--version"],
    version_format="plaintext",
    help_on_error=False,
)
# Ctrl-C is `main`'s: it says so.
app.suppress_keyboard_interrupt = app.meta.suppress_keyboard_interrupt = False
app.command(bench)
app.meta.group_parameters = Group("Options of every command", sort_key=0)

app.command(device.app)
app.command(engine.app)

Context = Annotated[Session, Parameter(parse=False)]
Paths = Annotated[tuple[Path, ...], Parameter(negative="")]


@app.command
def status(*, session: Context) -> int:
    """Show the daemon at a glance: state, features, tiers, faults."""
    found = session.client.get("status")
    if session.as_json:
        session.document(found)
    else:
        session.show(*tables.status(found))
    return Exit.OK


@app.command
def df(*, session: Context) -> int:
    """Show how full the tiers are."""
    found = session.client.get("df")
    if session.as_json:
        session.document(found)
    else:
        session.show(tables.tiers(found["tiers"]))
    return Exit.OK


@app.command
def metrics(*, session: Context) -> int:
    """Print the daemon's metrics, in the text format of Prometheus."""
    found = session.client.metrics()
    if session.as_json:
        session.document({"metrics": found})
    else:
        # Not through the console, which would wrap and colour it.
        print(found, end="")
    return Exit.OK


@app.command
def ls(
    path: Path = Path(),
    /,
    *,
    long: Annotated[bool, Parameter(name=["--long", "-l"], negative="", show_default=False)] = False,
    session: Context,
) -> int:
    """List a directory.

    Parameters
    ----------
    path
        A directory or a file.
    long
        Show mode, size, tier, state, whether NVMe has the same bytes, pins, opens, hits and idle time.
    """
    (inside,) = session.inside([path])
    found = session.client.get("list", inside)
    if session.as_json:
        session.document(found)
    elif long:
        session.show(tables.listing(found["entries"]))
    elif found["entries"]:
        session.show(*(Text(tables.base(entry), no_wrap=True) for entry in found["entries"]))
    return Exit.OK


@app.command
def stat(paths: Paths, /, *, session: Context) -> int:
    """Show all that is known of names.

    Parameters
    ----------
    paths
        One or more names.
    """
    found: list[dict[str, Any]] = []

    def ask(path: bytes) -> None:
        found.append(session.client.get("stat", path))
        if not session.as_json:
            session.show(*tables.entry(found[-1]))

    failed = _each(session, paths, ask)
    if session.as_json:
        session.document({"entries": found, "failed": failed})
    return exit_of_all([failure["code"] for failure in failed])


@app.command
def promote(paths: Paths, /, *, session: Context) -> int:
    """Bring objects to DDR.

    Parameters
    ----------
    paths
        Files, or directories for all below.
    """
    return operate(session, "promote", session.inside(paths))


@app.command
def demote(paths: Paths, /, *, session: Context) -> int:
    """Move objects to NVMe; those in use stay.

    Parameters
    ----------
    paths
        Files, or directories for all below.
    """
    return operate(session, "demote", session.inside(paths))


@app.command
def sync(paths: Paths = (), /, *, session: Context) -> int:
    """Make objects durable on NVMe; they stay where they are.

    Parameters
    ----------
    paths
        Files, or directories for all below; everything when none is given.
    """
    return operate(session, "sync", session.inside(paths) if paths else session.everything())


@app.command
def pin(paths: Paths, /, *, session: Context) -> int:
    """Keep objects where they are until they are unpinned.

    Parameters
    ----------
    paths
        Files, or directories for all below.
    """
    return _set_pinned(session, paths, pinned=True)


@app.command
def unpin(paths: Paths, /, *, session: Context) -> int:
    """Let pinned objects go again.

    Parameters
    ----------
    paths
        Files, or directories for all below.
    """
    return _set_pinned(session, paths, pinned=False)


def _set_pinned(session: Session, paths: Sequence[Path], *, pinned: bool) -> int:
    changed = 0

    def ask(path: bytes) -> None:
        nonlocal changed
        changed += session.client.pin(path, pinned=pinned)

    failed = _each(session, paths, ask)
    if session.as_json:
        session.document({"changed": changed, "failed": failed})
    elif changed or not failed:
        session.show(f"{'pinned' if pinned else 'unpinned'} {units.plural(changed, 'object')}")
    return exit_of_all([failure["code"] for failure in failed])


def _each(session: Session, paths: Sequence[Path], ask: Callable[[bytes], None]) -> list[dict[str, Any]]:
    """Do something to every path; one that the daemon refuses does not keep the others from it."""
    failed: list[dict[str, Any]] = []
    for path in session.inside(paths):
        try:
            ask(path)
        except CtlError as error:
            if error.status in {Exit.NO_DAEMON, Exit.USAGE}:
                raise
            failed.append({"path": names.to_wire(path), "code": error.code, "error": str(error)})
            session.complain_of(names.to_wire(path), str(error))
    return failed


@app.command
def version(*, session: Context) -> int:
    """Show the versions of kvctl and of the daemon."""
    document: dict[str, Any] = {"client": VERSION, "daemon": None}
    absent: CtlError | None = None
    try:
        document["daemon"] = session.client.get("version")
    except CtlError as error:
        absent = error
    if session.as_json:
        session.document(document)
    else:
        session.show(f"kvctl {document['client']}")
        if (daemon := document["daemon"]) is not None:
            session.show(f"kvd {daemon['version']} (api {daemon['api']}) serves {names.show(daemon['mount'])}")
    if absent is not None:
        session.complain(str(absent))
        return absent.status
    return Exit.OK


@app.command
def completion(shell: Literal["bash", "zsh", "fish"], /, *, session: Context) -> int:
    """Print a completion script for a shell.

    For bash: kvctl completion bash > /etc/bash_completion.d/kvctl

    Parameters
    ----------
    shell
        Which shell.
    """
    del session
    # Into a file, usually: not through the console, which would wrap and colour it.
    print(_whole_names(app.meta.generate_completion(prog_name="kvctl", shell=shell)))
    return Exit.OK


def _whole_names(script: str) -> str:
    """Let bash itself complete file names: the words of `$(compgen -f)` break at blanks."""
    return script.replace('COMPREPLY=( $(compgen -f -- "${cur}") )', "COMPREPLY=(); compopt -o default 2>/dev/null")


@app.meta.default
def _launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    socket: Path | None = None,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Ask a running kvd daemon.

    Parameters
    ----------
    socket
        Where the daemon listens: $KVD_SOCKET, else /run/kvd/kvd.sock.
    json
        Print one JSON document on standard output, and nothing else there.
    """
    command, bound, injected = app.parse_args(tokens, exit_on_error=False)
    where = socket or Path(os.environ.get("KVD_SOCKET") or DEFAULT_SOCKET)
    with Client(where) as client:
        session = Session(client, as_json=json)
        if "session" in injected:
            bound.arguments["session"] = session
        try:
            return int(command(*bound.args, **bound.kwargs) or Exit.OK)
        except CtlError as error:
            return session.fail(error)


def run(arguments: Sequence[str]) -> int:
    """Run one command; return the exit status."""
    try:
        return int(app.meta(arguments, exit_on_error=False, result_action="return_value") or Exit.OK)
    except CycloptsError:
        return Exit.USAGE
