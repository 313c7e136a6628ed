"""Hot removal: the kernel asks for the device through the request interrupt, and gets it. Leaves no `edu` behind."""

from __future__ import annotations

import edu as device
import host_port
import vfio_device
from edu import Edu
from vfio_device import DEVICES, bound

from kvdriver._vfio import lib


def test_a_device_that_is_unplugged_is_asked_for_and_goes_when_closed():
    where = vfio_device.slot(device.VENDOR, device.DEVICE)
    with bound(where):
        edu = Edu(where)
        request = edu.interrupt(lib.KVD_VFIO_IRQ_REQUEST)
        host_port.ask("unplug edu")
        assert request.fired() >= 1
        assert (DEVICES / where).exists()
        edu.close()
        vfio_device.wait_until(lambda: not (DEVICES / where).exists(), "removal")
