"""``kvctl device``: the cards of this machine. Only ``reset`` needs the daemon."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path  # cyclopts reads these annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

import trio
from cyclopts import App, Parameter

from kvctl import tables
from kvctl.exits import CtlError, Exit, UsageError
from kvctl.run import Run
from kvdriver import DeviceAddress, DeviceFault
from kvdriver.binding import Binder, BindingError, Refusal
from kvdriver.card import REGION_BYTES
from kvdriver.discovery import cards
from kvdriver.selftest import Step, inspect, selftest
from kvdriver.sysfs import Sysfs
from kvdriver.tables import tables_bytes

if TYPE_CHECKING:
    from kvdriver.discovery import PciDevice

RUN_FOLDER: Final = Path("/run/kvd")
SESSIONS_MAX: Final = 1 << 20
"""Of the daemon: what its tables have at least."""

_STATUSES: Final = {
    Refusal.NO_DEVICE: (Exit.NOT_FOUND, "ENOENT"),
    Refusal.NOT_A_CARD: (Exit.USAGE, "ENOTTY"),
    Refusal.GROUP_BUSY: (Exit.BUSY, "EBUSY"),
}

app = App(name="device", help="The cards of this machine.", help_format="markdown", version_flags=[])

Context = Annotated[Run, Parameter(parse=False)]
RunFolder = Annotated[Path, Parameter(name="--run")]


def _refused(error: BindingError) -> CtlError:
    status, code = _STATUSES.get(error.refusal, (Exit.FAILED, error.refusal.name))
    return CtlError(str(error), status, code)


def _address(text: str) -> DeviceAddress:
    try:
        address = DeviceAddress.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if address.is_in_process:
        raise UsageError("the in-process engine is no card: write vfio:SLOT or vfio-user:SOCKET")
    return address


def _document(device: PciDevice) -> dict[str, Any]:
    return asdict(device) | {"card": device.is_card}


def _show(ctl: Run, found: PciDevice) -> int:
    if ctl.as_json:
        ctl.document({"device": _document(found)})
    else:
        ctl.show(tables.devices([_document(found)]))
    return Exit.OK


@app.command(name="list")
def list_(
    *, every: Annotated[bool, Parameter(name="--all", negative="", show_default=False)] = False, ctl: Context
) -> int:
    """List the cards: slot, vendor and device, NUMA node, IOMMU group and who else is in it, driver.

    Parameters
    ----------
    every
        Every PCI device, not only kvd cards.
    """
    found = [_document(device) for device in cards(Sysfs(), every=every)]
    if ctl.as_json:
        ctl.document({"devices": found})
    elif found:
        ctl.show(tables.devices(found))
    else:
        ctl.show("no kvd card; see kvctl device list --all")
    return Exit.OK


@app.command
def bind(
    slot: str,
    /,
    *,
    force_id: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    run: RunFolder = RUN_FOLDER,
    ctl: Context,
) -> int:
    """Give a card to vfio-pci, so that kvd can drive it; its present driver is remembered.

    Parameters
    ----------
    slot
        As in 0000:01:00.0.
    force_id
        Also a device that does not say it is a kvd card.
    run
        Where the former driver is noted.
    """
    memlock_bytes = tables_bytes(1 << 16, {}, SESSIONS_MAX) + REGION_BYTES
    try:
        return _show(ctl, Binder(Sysfs(), run).bind(slot, memlock_bytes=memlock_bytes, force_id=force_id))
    except BindingError as error:
        raise _refused(error) from error


@app.command
def unbind(slot: str, /, *, run: RunFolder = RUN_FOLDER, ctl: Context) -> int:
    """Give a card back to the driver that it had before ``kvctl device bind``.

    Parameters
    ----------
    slot
        As in 0000:01:00.0.
    run
        Where the former driver was noted.
    """
    try:
        return _show(ctl, Binder(Sysfs(), run).unbind(slot))
    except BindingError as error:
        raise _refused(error) from error


@app.command
def info(address: str, /, *, ctl: Context) -> int:
    """Show what a card says of itself; nobody else may be using it.

    Parameters
    ----------
    address
        vfio:SLOT or vfio-user:SOCKET.
    """
    try:
        found = inspect(_address(address))
    except DeviceFault as fault:
        raise CtlError(str(fault), Exit.FAILED, fault.kind.name) from fault
    if ctl.as_json:
        ctl.document(found)
    else:
        ctl.show(tables.card(found))
    return Exit.OK


@app.command(name="selftest")
def selftest_(address: str, /, *, ctl: Context) -> int:
    """Try a card out: a session, pages, their translation compared with the tables. Nobody else may be using it.

    Parameters
    ----------
    address
        vfio:SLOT or vfio-user:SOCKET.
    """
    steps: list[Step] = []

    def report(step: Step) -> None:
        steps.append(step)
        if not ctl.as_json:
            ctl.show(f"{'ok    ' if step.passed else 'FAILED'} {step.name}: {step.told}")

    where = _address(address)
    trio.run(selftest, where, report)
    passed = all(step.passed for step in steps)
    if ctl.as_json:
        ctl.document({"passed": passed, "steps": [asdict(step) for step in steps]})
    return Exit.OK if passed else Exit.FAILED


@app.command
def reset(*, ctl: Context) -> int:
    """Let the daemon reset its card and give it the engine's tables again."""
    found = ctl.client.post("device/reset")
    if ctl.as_json:
        ctl.document(found)
    else:
        ctl.show(tables.engine(found))
    return Exit.OK if found["state"] == "ok" else Exit.FAILED
