"""Hot removal: the kernel asks for the device through the request interrupt, and gets it. Leaves no `edu` behind."""

from __future__ import annotations

import edu as device
import host_port
from edu import Edu, bound

from kvdriver._vfio import lib


def test_a_device_that_is_unplugged_is_asked_for_and_goes_when_closed():
    where = device.slot()
    with bound(where):
        edu = Edu(where)
        request = edu.interrupt(lib.KVD_VFIO_IRQ_REQUEST)
        host_port.ask("unplug edu")
        assert request.fired() >= 1
        assert (device.DEVICES / where).exists()
        edu.close()
        device.wait_until(lambda: not (device.DEVICES / where).exists(), "removal")
