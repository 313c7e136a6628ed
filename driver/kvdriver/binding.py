"""Gives a PCI device to vfio-pci, and back to the driver that it had."""

from __future__ import annotations

import contextlib
import enum
import errno
import json
from typing import TYPE_CHECKING, Final

from kvdriver.address import SLOT
from kvdriver.discovery import VFIO_DRIVER, PciDevice, find

if TYPE_CHECKING:
    from pathlib import Path

    from kvdriver.sysfs import Sysfs

_IOMMU_MEND: Final = {
    "GenuineIntel": "add intel_iommu=on to the kernel's parameters, switch VT-d on in the firmware, and boot again",
    "AuthenticAMD": "switch the IOMMU (AMD-Vi) on in the firmware, remove amd_iommu=off from the kernel's parameters, and boot again",
}
_IOMMU_MEND_OTHER: Final = "switch it on in the firmware and in the kernel's parameters, and boot again"


class Refusal(enum.Enum):
    """Why a device can't be bound or unbound; the value is the errno that says it best."""

    NO_DEVICE = errno.ENOENT
    NOT_A_CARD = errno.ENOTTY
    IOMMU_OFF = errno.EOPNOTSUPP
    NO_VFIO = errno.ENXIO
    NOT_VIABLE = errno.ENOTUNIQ
    GROUP_BUSY = errno.EBUSY
    NO_PERMISSION = errno.EACCES
    MEMLOCK = errno.ENOMEM
    NOT_OURS = errno.EINVAL
    FAILED = errno.EIO


class BindingError(Exception):
    """A device was not bound or unbound; nothing was changed.

    Attributes
    ----------
    refusal
        Why.
    """

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


class Binder:
    """Binds devices to vfio-pci.

    Parameters
    ----------
    sysfs
        The machine.
    state
        A folder for what must be remembered until the unbind: the former drivers.
    """

    def __init__(self, sysfs: Sysfs, state: Path) -> None:
        self._sysfs = sysfs
        self._state = state

    def __repr__(self) -> str:
        return f"<Binder of {self._sysfs!r}>"

    def bind(self, slot: str, *, memlock_bytes: int, force_id: bool = False) -> PciDevice:
        """Give a device to vfio-pci; of one that has it already only the conditions are checked.

        Parameters
        ----------
        slot
            As in ``0000:01:00.0``.
        memlock_bytes
            How much memory its user will want to map for it.
        force_id
            Also a device that does not say it is a kvd card.

        Raises
        ------
        BindingError
            With the reason and the mend.
        """
        device = self._device(slot)
        if not (device.is_card or force_id):
            raise BindingError(
                Refusal.NOT_A_CARD,
                f"{slot} is {device.vendor:04x}:{device.device:04x}, which is no kvd card; "
                "say --force-id if it is one with its maker's numbers",
            )
        self._check(device, memlock_bytes)
        if device.driver != VFIO_DRIVER:
            self._remember(slot, device.driver)
            try:
                self._give(slot, device.driver)
            except (BindingError, OSError) as error:
                self._take_back(slot, device.driver)
                self._forget(slot)
                raise self._failure(error, f"can't bind {slot} to {VFIO_DRIVER}") from error
        return self._device(slot)

    def unbind(self, slot: str) -> PciDevice:
        """Take a device that `bind` bound from vfio-pci and give it to the driver that it had before.

        Raises
        ------
        BindingError
            With the reason and the mend.
        """
        device = self._device(slot)
        known, former = self._recall(slot)
        if not known:
            raise BindingError(
                Refusal.NOT_OURS,
                f"{slot} was not bound by kvctl, so its former driver is not known; its driver is {device.driver}",
            )
        self._check_busy(device)
        try:
            self._take_back(slot, former, strict=True)
        except OSError as error:
            raise self._failure(error, f"can't give {slot} back to {former or 'no driver'}") from error
        self._forget(slot)
        return self._device(slot)

    # -- conditions ----------------------------------------------------------------------------------------------

    def _device(self, slot: str) -> PciDevice:
        if not SLOT.fullmatch(slot):
            raise BindingError(Refusal.NO_DEVICE, f"{slot!r} is no slot; write it as in 0000:01:00.0")
        device = find(self._sysfs, slot)
        if device is None:
            raise BindingError(Refusal.NO_DEVICE, f"there is no PCI device {slot}; see kvctl device list --all")
        return device

    def _check(self, device: PciDevice, memlock_bytes: int) -> None:
        if device.group is None:
            mend = _IOMMU_MEND.get(self._sysfs.cpu_vendor(), _IOMMU_MEND_OTHER)
            raise BindingError(Refusal.IOMMU_OFF, f"the IOMMU is off, so {device.slot} has no group; {mend}")
        foreign = [each for each in device.neighbours if not each.viable]
        if foreign:
            others = ", ".join(f"{each.slot} ({each.driver})" for each in foreign)
            raise BindingError(
                Refusal.NOT_VIABLE,
                f"group {device.group} of {device.slot} is not viable: its other devices are driven by {others}; "
                "unbind them, or move the card to another slot",
            )
        if not self._sysfs.names(self._sysfs.driver(VFIO_DRIVER)):
            raise BindingError(Refusal.NO_VFIO, f"the kernel has no driver {VFIO_DRIVER}; run modprobe {VFIO_DRIVER}")
        self._check_busy(device)
        limit_bytes = self._sysfs.memlock_bytes()
        if limit_bytes is not None and limit_bytes < memlock_bytes:
            raise BindingError(
                Refusal.MEMLOCK,
                f"a card needs {memlock_bytes >> 10} KiB of locked memory and this user's limit is {limit_bytes >> 10} KiB; "
                "raise it (ulimit -l, LimitMEMLOCK= in the unit, memlock in limits.conf)",
            )

    def _check_busy(self, device: PciDevice) -> None:
        own = self._sysfs.names(self._sysfs.device(device.slot) / "vfio-dev")  # with iommufd
        nodes = [self._sysfs.dev / "vfio" / name for name in (str(device.group), *(f"devices/{name}" for name in own))]
        users = [user for node in nodes for user in self._sysfs.users(node)]
        if users:
            who = ", ".join(f"{user.name} (process {user.pid})" for user in users)
            raise BindingError(Refusal.GROUP_BUSY, f"group {device.group} of {device.slot} is in use by {who}; stop it")

    # -- doing ---------------------------------------------------------------------------------------------------

    def _give(self, slot: str, former: str | None) -> None:
        sysfs = self._sysfs
        sysfs.write(sysfs.device(slot) / "driver_override", VFIO_DRIVER)
        if former is not None:
            sysfs.write(sysfs.driver(former) / "unbind", slot)
        sysfs.write(sysfs.sys / "bus/pci/drivers_probe", slot)
        if sysfs.link(sysfs.device(slot) / "driver") != VFIO_DRIVER:
            raise BindingError(Refusal.FAILED, f"{VFIO_DRIVER} did not take it; the kernel's log says why (dmesg)")

    def _take_back(self, slot: str, former: str | None, *, strict: bool = False) -> None:
        """Make it as it was; not `strict`: as far as that goes."""
        sysfs = self._sysfs
        device = sysfs.device(slot)
        with contextlib.nullcontext() if strict else contextlib.suppress(OSError):
            sysfs.write(device / "driver_override", "\n")
            if sysfs.link(device / "driver") == VFIO_DRIVER:
                sysfs.write(sysfs.driver(VFIO_DRIVER) / "unbind", slot)
            if former is not None and sysfs.link(device / "driver") != former:
                sysfs.write(sysfs.driver(former) / "bind", slot)

    def _failure(self, error: BindingError | OSError, what: str) -> BindingError:
        if isinstance(error, BindingError):
            return BindingError(error.refusal, f"{what}: {error}")
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            return BindingError(Refusal.NO_PERMISSION, f"{what}: {error.strerror}; be root")
        return BindingError(Refusal.FAILED, f"{what}: {error.strerror}; the kernel's log says why (dmesg)")

    # -- what is remembered --------------------------------------------------------------------------------------

    def _file(self, slot: str) -> Path:
        return self._state / f"bound-{slot}.json"

    def _remember(self, slot: str, former: str | None) -> None:
        try:
            self._state.mkdir(parents=True, exist_ok=True)
            self._file(slot).write_text(json.dumps({"slot": slot, "former": former}) + "\n", encoding="ascii")
        except OSError as error:
            refusal = Refusal.NO_PERMISSION if error.errno in {errno.EACCES, errno.EPERM} else Refusal.FAILED
            raise BindingError(
                refusal, f"can't note the former driver of {slot} in {self._state}: {error.strerror}; be root"
            ) from error

    def _recall(self, slot: str) -> tuple[bool, str | None]:
        try:
            former = json.loads(self._file(slot).read_text(encoding="ascii"))["former"]
        except (OSError, ValueError, KeyError, TypeError):
            return False, None
        return (former is None or isinstance(former, str)), former

    def _forget(self, slot: str) -> None:
        with contextlib.suppress(OSError):
            self._file(slot).unlink()
