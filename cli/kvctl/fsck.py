"""``kvctl fsck``: what is stored, checked by the daemon where one runs, else here."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path  # noqa: TC003  cyclopts reads these annotations
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter

from kvctl import units
from kvctl.client import Client
from kvctl.exits import CtlError, Exit, NoDaemonError, UsageError
from kvctl.names import show
from kvctl.operate import bar
from kvctl.run import Run

if TYPE_CHECKING:
    from collections.abc import Generator

    from kvd.config import Config
    from kvd.fsck.rebuild import Rebuilt

Context = Annotated[Run, Parameter(parse=False)]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]


FAULT_KEYS = ("kind", "what", "place", "done", "mended")


@dataclass(slots=True)
class Report:
    """What a check came to: faults as documents, and whether a daemon was asked."""

    online: bool
    faults: list[dict[str, Any]] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Faults that are there still."""
        return sum(1 for fault in self.faults if not fault["mended"])

    def sentence(self) -> str:
        """Return it for people."""
        if not self.faults:
            return "clean"
        faults = units.plural(len(self.faults), "fault")
        mended = len(self.faults) - self.left
        return f"{faults}, {'all' if not self.left else mended} mended" if mended else faults

    def document(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        return {"online": self.online, "result": self.sentence(), "left": self.left, "faults": self.faults}


def fsck(
    *,
    data: Flag = False,
    repair: Flag = False,
    rebuild: Flag = False,
    config: Path | None = None,
    ctl: Context,
) -> int:
    """Check catalogue, page tables and files against each other.

    A running daemon checks itself; what a stopped one keeps is checked here. Exit status: 0 clean, or all is mended; 1 faults
    are left; 2 a configuration that can't be used; 5 the state is in use by a daemon that does not answer.

    Parameters
    ----------
    data
        Read every page on NVMe, too, and verify it.
    repair
        Mend what can be mended; an object whose bytes are bad goes into quarantine. Each fault says what was done.
    rebuild
        Make the catalogue of a stopped kvd anew from the files on NVMe; the old one is kept beside it.
    config
        The configuration of the daemon that is stopped; /etc/kvd/kvd.toml where it exists, else the defaults.
    """
    if rebuild and repair:
        raise UsageError("--rebuild makes the catalogue anew and leaves nothing to --repair; give one of them")
    if rebuild:
        return _rebuild(ctl, _config(config), data=data)
    report = _online(ctl, config, data=data, repair=repair)
    if report is None:
        report = _offline(ctl, _config(config), data=data, repair=repair)
    if ctl.as_json:
        ctl.document(report.document())
    else:
        ctl.show(*(line for fault in report.faults for line in _lines(fault)), report.sentence())
    return Exit.FAILED if report.left else Exit.OK


def _lines(fault: dict[str, Any]) -> list[str]:
    place = f" ({fault['place']})" if fault.get("place") else ""
    lines = [show(fault["what"] + place)]
    if fault["done"]:
        lines.append(show(f"  {fault['done']}"))
    return lines


def _config(path: Path | None) -> Config:
    from kvd import config  # noqa: PLC0415  the daemon's modules are not needed to ask one that runs
    from kvd.errors import KvdError  # noqa: PLC0415

    try:
        return config.load(path)
    except KvdError as error:
        raise UsageError(str(error)) from error


# -- a daemon that runs ----------------------------------------------------------------------------------------------------


def _online(ctl: Run, config: Path | None, *, data: bool, repair: bool) -> Report | None:
    """Let the daemon check itself; None where none runs and its configuration is known."""
    if config is not None:
        with Client(_config(config).daemon.socket) as client:
            return _asked_or_none(ctl, client, data=data, repair=repair)
    report = _asked_or_none(ctl, ctl.client, data=data, repair=repair)
    if report is None and _config(None).daemon.socket != ctl.client.socket:
        raise NoDaemonError(f"no daemon at {ctl.client.socket}; --config FILE says where a stopped one keeps its state")
    return report


def _asked_or_none(ctl: Run, client: Client, *, data: bool, repair: bool) -> Report | None:
    try:
        return _asked(ctl, client, data=data, repair=repair)
    except NoDaemonError:
        if client.absent:
            return None
        raise


def _asked(ctl: Run, client: Client, *, data: bool, repair: bool) -> Report:
    report = Report(online=True)
    body: dict[str, object] = {"data": data, "repair": repair}
    with bar(ctl) as progress:
        task = progress.add_task("fsck", total=None, name="", bytes="")
        with closing(cast("Generator[dict[str, Any]]", client.stream("fsck", body))) as findings:
            for found in findings:
                progress.update(task, total=found["total"], completed=found["done"])
                if found["what"]:
                    fault = found | {"place": "", "done": found["done_about_it"]}
                    report.faults.append({key: fault[key] for key in FAULT_KEYS})
    return report


# -- one that is stopped ---------------------------------------------------------------------------------------------------


def _offline(ctl: Run, config: Config, *, data: bool, repair: bool) -> Report:
    import trio  # noqa: PLC0415

    from kvd.fsck.offline import examine  # noqa: PLC0415
    from kvd.tier.page import PAGE_BYTES  # noqa: PLC0415

    del ctl
    with _held(config):
        found = trio.run(lambda: examine(config, page_bytes=PAGE_BYTES, data=data, repair=repair))
    report = Report(online=False)
    report.faults += [{key: getattr(fault, key) for key in FAULT_KEYS} for fault in found]
    return report


def _held(config: Config) -> Any:
    """Hold the state of a stopped kvd; what is wrong with it is this program's error."""
    from contextlib import contextmanager  # noqa: PLC0415

    from kvd.errors import KvdError, UnavailableError  # noqa: PLC0415
    from kvd.lock import locked  # noqa: PLC0415

    @contextmanager
    def held() -> Generator[None]:
        try:
            with locked(config.daemon.state):
                yield
        except UnavailableError as error:
            raise CtlError(str(error), Exit.BUSY, "EBUSY") from error
        except KvdError as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            raise UsageError(f"[daemon] state: {config.daemon.state}: {error.strerror}") from error

    return held()


def _rebuild(ctl: Run, config: Config, *, data: bool) -> int:
    import trio  # noqa: PLC0415

    from kvd.fsck.rebuild import rebuild  # noqa: PLC0415
    from kvd.tier.page import PAGE_BYTES  # noqa: PLC0415

    with _held(config):
        made = trio.run(lambda: rebuild(config, page_bytes=PAGE_BYTES, data=data))
    if ctl.as_json:
        ctl.document(asdict(made) | {"result": _told(made)})
    else:
        ctl.show(*map(show, made.left_out), show(_told(made)))
    return Exit.FAILED if made.left_out else Exit.OK


def _told(made: Rebuilt) -> str:
    folders = "1 directory" if made.directories == 1 else f"{made.directories} directories"
    lost = f", {made.lost_found} of them in /lost+found" if made.lost_found else ""
    kept = f"; the old one is {made.kept}" if made.kept else ""
    objects = units.plural(made.objects, "object")
    return f"the catalogue is made anew: {objects}, {folders}, {made.others} others{lost}{kept}"
