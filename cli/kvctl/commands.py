"""The commands of ``kvctl``."""

from __future__ import annotations

import os
from pathlib import Path  # cyclopts reads these annotations
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import App, CycloptsError, Group, Parameter
from rich.text import Text

from kvctl import names, tables, units
from kvctl.client import Client
from kvctl.exits import CtlError, Exit, UsageError, exit_of_all
from kvctl.operate import operate
from kvctl.run import Run

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
- 8: another fingerprint than the namespace's
- 130: interrupted
"""


def version_of_kvd() -> str:
    """Return the version that is installed; looking it up takes a while."""
    from importlib.metadata import version  # noqa: PLC0415

    return version("kvd")


app = App(
    name="kvctl",
    help=HELP,
    help_format="markdown",
    version=lambda: f"kvctl {version_of_kvd()}",
    version_flags=["--version"],
    version_format="plaintext",
    help_on_error=False,
)
# Ctrl-C is `main`'s: it says so.
app.suppress_keyboard_interrupt = app.meta.suppress_keyboard_interrupt = False
app.meta.group_parameters = Group("Options of every command", sort_key=0)

# Imported when they are asked for: importing them would take longer than most commands do.
LATER: Final = {
    "bench": "kvctl.bench:bench",
    "device": "kvctl.device:app",
    "engine": "kvctl.engine:app",
    "fsck": "kvctl.fsck:fsck",
    "invalidate": "kvctl.namespace:invalidate",
    "namespace": "kvctl.namespace:app",
    "plan": "kvctl.plan:plan",
    "replay": "kvctl.replay:replay",
    "session": "kvctl.sessions:app",
}
for _name, _place in LATER.items():
    app.command(_place, name=_name)

Context = Annotated[Run, Parameter(parse=False)]
Paths = Annotated[tuple[Path, ...], Parameter(negative="")]


@app.command
def status(*, ctl: Context) -> int:
    """Show the daemon at a glance: state, features, tiers, faults."""
    found = ctl.client.get("status")
    if ctl.as_json:
        ctl.document(found)
    else:
        ctl.show(*tables.status(found))
    return Exit.OK


@app.command
def df(*, ctl: Context) -> int:
    """Show how full the tiers are."""
    found = ctl.client.get("df")
    if ctl.as_json:
        ctl.document(found)
    else:
        ctl.show(tables.tiers(found["tiers"]))
    return Exit.OK


@app.command
def metrics(*, ctl: Context) -> int:
    """Print the daemon's metrics, in the text format of Prometheus."""
    found = ctl.client.metrics()
    if ctl.as_json:
        ctl.document({"metrics": found})
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
    ctl: Context,
) -> int:
    """List a directory.

    Parameters
    ----------
    path
        A directory or a file.
    long
        Show mode, size, tier, state, whether NVMe has the same bytes, pins, opens, hits and idle time.
    """
    (inside,) = ctl.inside([path])
    found = ctl.client.get("list", inside)
    if ctl.as_json:
        ctl.document(found)
    elif long:
        ctl.show(tables.listing(found["entries"]))
    elif found["entries"]:
        ctl.show(*(Text(tables.base(entry), no_wrap=True) for entry in found["entries"]))
    return Exit.OK


@app.command
def stat(paths: Paths, /, *, ctl: Context) -> int:
    """Show all that is known of names.

    Parameters
    ----------
    paths
        One or more names.
    """
    found: list[dict[str, Any]] = []

    def ask(path: bytes) -> None:
        found.append(ctl.client.get("stat", path))
        if not ctl.as_json:
            ctl.show(*tables.entry(found[-1]))

    failed = _each(ctl, paths, ask)
    if ctl.as_json:
        ctl.document({"entries": found, "failed": failed})
    return exit_of_all([failure["code"] for failure in failed])


@app.command
def promote(paths: Paths, /, *, ctl: Context) -> int:
    """Bring objects to DDR.

    Parameters
    ----------
    paths
        Files, or directories for all below.
    """
    return operate(ctl, "promote", ctl.inside(paths))


@app.command
def demote(paths: Paths, /, *, ctl: Context) -> int:
    """Move objects to NVMe; those in use stay.

    Parameters
    ----------
    paths
        Files, or directories for all below.
    """
    return operate(ctl, "demote", ctl.inside(paths))


@app.command
def sync(paths: Paths = (), /, *, ctl: Context) -> int:
    """Make objects durable on NVMe; they stay where they are.

    Parameters
    ----------
    paths
        Files, or directories for all below; everything when none is given.
    """
    return operate(ctl, "sync", ctl.inside(paths) if paths else ctl.everything())


@app.command
def scrub(
    paths: Paths = (),
    /,
    *,
    everything: Annotated[bool, Parameter(name="--all", negative="", show_default=False)] = False,
    ctl: Context,
) -> int:
    """Read objects on NVMe now and verify every page; what is bad is made anew from DDR, or quarantined.

    Parameters
    ----------
    paths
        Files, or directories for all below.
    everything
        All there is.
    """
    if everything == bool(paths):
        raise UsageError("give paths, or --all for everything")
    return operate(ctl, "scrub", ctl.everything() if everything else ctl.inside(paths))


@app.command
def pin(paths: Paths, /, *, ctl: Context) -> int:
    """Keep objects where they are until they are unpinned.

    Parameters
    ----------
    paths
        Files, or directories for all below.
    """
    return _set_pinned(ctl, paths, pinned=True)


@app.command
def unpin(paths: Paths, /, *, ctl: Context) -> int:
    """Let pinned objects go again.

    Parameters
    ----------
    paths
        Files, or directories for all below.
    """
    return _set_pinned(ctl, paths, pinned=False)


def _set_pinned(ctl: Run, paths: Sequence[Path], *, pinned: bool) -> int:
    changed = 0

    def ask(path: bytes) -> None:
        nonlocal changed
        changed += ctl.client.pin(path, pinned=pinned)

    failed = _each(ctl, paths, ask)
    if ctl.as_json:
        ctl.document({"changed": changed, "failed": failed})
    elif changed or not failed:
        ctl.show(f"{'pinned' if pinned else 'unpinned'} {units.plural(changed, 'object')}")
    return exit_of_all([failure["code"] for failure in failed])


def _each(ctl: Run, paths: Sequence[Path], ask: Callable[[bytes], None]) -> list[dict[str, Any]]:
    """Do something to every path; one that the daemon refuses does not keep the others from it."""
    failed: list[dict[str, Any]] = []
    for path in ctl.inside(paths):
        try:
            ask(path)
        except CtlError as error:
            if error.status in {Exit.NO_DAEMON, Exit.USAGE}:
                raise
            failed.append({"path": names.to_wire(path), "code": error.code, "error": str(error)})
            ctl.complain_of(names.to_wire(path), str(error))
    return failed


@app.command
def version(*, ctl: Context) -> int:
    """Show the versions of kvctl and of the daemon."""
    document: dict[str, Any] = {"client": version_of_kvd(), "daemon": None}
    absent: CtlError | None = None
    try:
        document["daemon"] = ctl.client.get("version")
    except CtlError as error:
        absent = error
    if ctl.as_json:
        ctl.document(document)
    else:
        ctl.show(f"kvctl {document['client']}")
        if (daemon := document["daemon"]) is not None:
            ctl.show(f"kvd {daemon['version']} (api {daemon['api']}) serves {names.show(daemon['mount'])}")
    if absent is not None:
        ctl.complain(str(absent))
        return absent.status
    return Exit.OK


@app.command
def completion(shell: Literal["bash", "zsh", "fish"], /, *, ctl: Context) -> int:
    """Print a completion script for a shell.

    For bash: kvctl completion bash > /etc/bash_completion.d/kvctl

    Parameters
    ----------
    shell
        Which shell.
    """
    del ctl
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
        ctl = Run(client, as_json=json)
        for name in injected:
            bound.arguments[name] = ctl
        try:
            return int(command(*bound.args, **bound.kwargs) or Exit.OK)
        except CtlError as error:
            return ctl.fail(error)


def run(arguments: Sequence[str]) -> int:
    """Run one command; return the exit status."""
    named = (word for word in arguments if word in app and not word.startswith("-"))
    if next(named, "completion") == "completion":
        for name in LATER:  # all commands are listed
            app[name]
    try:
        return int(app.meta(arguments, exit_on_error=False, result_action="return_value") or Exit.OK)
    except CycloptsError:
        return Exit.USAGE
