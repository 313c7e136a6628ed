"""The lock of a state: who has it, and what becomes of one whose owner was killed and can't end."""

import os
import signal
import subprocess
import sys

import pytest

from kvd import lock
from kvd.errors import UnavailableError

HOLDER = """
import ctypes, fcntl, os, sys, threading
file = open(sys.argv[1], "a+")
fcntl.flock(file, fcntl.LOCK_EX)
file.truncate(0)
file.write(f"{os.getpid()}\\n")
file.flush()
if sys.argv[2] == "dying":  # the first thread ends, another one stays: so a killed process looks whose thread hangs in the kernel
    stays = threading.Event()
    threading.Thread(target=lambda: (print("held", flush=True), stays.wait())).start()
    ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)  # exit(2): of this thread alone
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path):
    """Return a function that has another process hold the lock; it ends with the test."""
    started = []

    def hold(how):
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, tmp_path / lock.LOCK_NAME, how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(holder)
        assert holder.stdout.readline() == b"held\n"
        return holder

    yield hold
    for holder in started:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()


def test_a_state_has_one_daemon(tmp_path, held):
    holder = held("alive")
    asked = []
    with (
        pytest.raises(UnavailableError, match=f"another kvd .pid {holder.pid}. uses"),
        lock.locked(tmp_path, unstick=lambda: asked.append(1)),
    ):
        pass
    assert not asked


def leader_is_gone(pid):
    return lock._is_dying(str(pid))


def test_a_killed_daemon_that_hangs_in_the_kernel_is_freed(tmp_path, held):
    holder = held("dying")
    while not leader_is_gone(holder.pid):
        os.sched_yield()
    with lock.locked(tmp_path, unstick=lambda: os.kill(holder.pid, signal.SIGKILL)):
        assert (tmp_path / lock.LOCK_NAME).read_text() == f"{os.getpid()}\n"


def test_one_that_does_not_end_is_named(tmp_path, held, monkeypatch):
    monkeypatch.setattr(lock, "DYING_S_MAX", 0.2)
    holder = held("dying")
    while not leader_is_gone(holder.pid):
        os.sched_yield()
    with pytest.raises(UnavailableError, match=f"pid {holder.pid}. does not end"), lock.locked(tmp_path):
        pass
