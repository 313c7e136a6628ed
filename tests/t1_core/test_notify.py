"""What systemd is told, over a real datagram socket."""

from __future__ import annotations

import socket

import pytest
import trio

from kvd.notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def listener(request, scratch):
    name = str(scratch / "notify")
    address = name if request.param == "path" else f"@{name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name if request.param == "path" else f"\0{name}")
        sock.settimeout(5)
        yield sock, address


def test_messages(listener):
    sock, address = listener
    notifier = Notifier.from_environ({"NOTIFY_SOCKET": address})
    notifier.ready()
    notifier.status("promoting\n3 of 7")
    notifier.extend(2.5)
    notifier.stopping()
    assert [sock.recv(4096).decode() for _ in range(4)] == [
        "READY=1",
        "STATUS=promoting 3 of 7",
        "EXTEND_TIMEOUT_USEC=2500000",
        "STOPPING=1",
    ]


async def test_watchdog_gives_two_signs_a_period(listener, autojump_clock):
    sock, address = listener
    notifier = Notifier.from_environ({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "10000000"})
    assert notifier.watchdog_s == 10
    with trio.move_on_after(21):
        await notifier.watchdog()
    assert [sock.recv(64) for _ in range(5)] == [b"WATCHDOG=1"] * 5
    sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        sock.recv(64)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "relative"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
    ],
)
async def test_no_watchdog_unless_systemd_asks_this_process(environ):
    notifier = Notifier.from_environ(environ, pid=4711)
    assert notifier.watchdog_s is None
    with trio.fail_after(1):
        await notifier.watchdog()


def test_without_a_service_manager_nothing_is_sent():
    notifier = Notifier.from_environ({})
    assert notifier.address is None
    notifier.ready()


def test_a_service_manager_that_is_gone_or_slow_does_not_stop_the_daemon(scratch):
    gone = Notifier(address=str(scratch / "gone"))
    gone.ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(scratch / "slow"))
        slow = Notifier(address=str(scratch / "slow"))
        for _ in range(5000):  # more than a socket's queue holds
            slow.alive()
        assert sock.recv(64) == b"WATCHDOG=1"
