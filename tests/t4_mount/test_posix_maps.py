"""Mappings, locks between processes, and a mapping as a buffer of io_uring."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import signal
import subprocess
import sys

import pytest

from support.posix import child, ftruncate, tried, wait_for

PAGE = 4096
SIZE = 64 * PAGE
PINNED_SIZE = 1024 * PAGE
"""Objects under 1 MiB are written through kvd, so only a mapping of a reader can be pinned there."""


@pytest.fixture
def path(folder):
    made = folder / "map"
    made.write_bytes(b"0" * SIZE)
    return made


def mapped(path, access=mmap.ACCESS_DEFAULT, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE):
    fd = os.open(path, os.O_RDWR if prot & mmap.PROT_WRITE and flags == mmap.MAP_SHARED else os.O_RDONLY)
    try:
        return mmap.mmap(fd, 0, flags=flags, prot=prot)
    finally:
        os.close(fd)


def test_a_shared_mapping_and_a_descriptor_see_each_other(path):
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, SIZE) as memory:
        for at in (0, 5, PAGE - 1, 10 * PAGE, SIZE - 3):
            memory[at : at + 2] = b"mm"
            assert os.pread(fd, 2, at) == b"mm"
            os.pwrite(fd, b"ww", at)
            assert memory[at : at + 2] == b"ww"
        os.pwrite(fd, b"x" * 3 * PAGE, 7)
        assert memory[7 : 7 + 3 * PAGE] == b"x" * 3 * PAGE
        memory.flush()
        memory.flush(PAGE, PAGE)
    os.close(fd)
    assert path.read_bytes()[7 : 7 + 3 * PAGE] == b"x" * 3 * PAGE


def test_two_mappings_in_two_processes_are_one_memory(path):
    code = (
        "import mmap\nfd = os.open(sys.argv[1], os.O_RDWR)\nm = mmap.mmap(fd, 0); os.close(fd)\n"
        "assert m[:6] == b'parent', m[:6]\nm[8:13] = b'child'"
    )
    with mapped(path) as memory:
        memory[:6] = b"parent"
        child(code, path)
        assert memory[8:13] == b"child"
    assert path.read_bytes()[:13] == b"parent00child"


def test_a_mapping_outlives_its_descriptor_its_name_and_a_rename(path, folder):
    memory = mapped(path)
    memory[:5] = b"first"
    os.rename(path, folder / "other")
    memory[5:10] = b"later"
    assert (folder / "other").read_bytes()[:10] == b"firstlater"
    os.unlink(folder / "other")
    memory[10:14] = b"gone"
    path.write_bytes(b"another")
    assert memory[:14] == b"firstlatergone"
    assert memory[SIZE - 1 :] == b"0"
    memory.close()


def test_what_a_mapping_wrote_is_there_after_munmap_fsync_and_a_demotion(path, mounted):
    memory = mapped(path)
    memory[:] = bytes(range(256)) * (SIZE // 256)
    memory.close()
    assert path.read_bytes() == bytes(range(256)) * (SIZE // 256)
    mounted.kvd.kvctl("demote", str(path))
    with mapped(path, prot=mmap.PROT_READ) as memory:
        assert memory[:] == bytes(range(256)) * (SIZE // 256)


def test_a_private_mapping_changes_nothing(path):
    with mapped(path, flags=mmap.MAP_PRIVATE) as memory:
        memory[:4] = b"mine"
        assert memory[:5] == b"mine0"
        with open(path, "r+b", buffering=0) as file:
            file.seek(PAGE)
            file.write(b"theirs")
        assert memory[PAGE : PAGE + 6] == b"theirs"
    assert path.read_bytes()[:4] == b"0000"


def test_mapping_asks_for_the_right_descriptor(same):
    def case(d):
        (d / "f").write_bytes(b"x" * PAGE)
        results = []
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
            fd = os.open(d / "f", flags)
            for kind in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
                for prot in (mmap.PROT_READ, mmap.PROT_WRITE, mmap.PROT_READ | mmap.PROT_EXEC):
                    made = tried(mmap.mmap, fd, PAGE, flags=kind, prot=prot)
                    results.append(made if isinstance(made, str) else "mapped")
                    if not isinstance(made, str):
                        made.close()
            os.close(fd)
        return results

    same(case)


def test_a_mapping_grows_with_its_file(path):
    fd = os.open(path, os.O_RDWR)
    memory = mmap.mmap(fd, SIZE)
    ftruncate(fd, 4 * SIZE)
    memory.resize(4 * SIZE)  # mremap
    memory[3 * SIZE : 3 * SIZE + 3] = b"end"
    assert os.pread(fd, 4, 3 * SIZE) == b"end\0"
    memory.close()
    os.close(fd)


def test_the_last_page_ends_in_zeros(folder):
    (folder / "f").write_bytes(b"abc")
    with mapped(folder / "f", prot=mmap.PROT_READ) as memory:
        assert ctypes.string_at(_address(memory), 8) == b"abc\0\0\0\0\0"


def _address(memory):
    """Return where a mapping lies, also a read-only one."""
    view = ctypes.py_object(memory)
    buffer = (ctypes.c_char * 80)()
    assert ctypes.pythonapi.PyObject_GetBuffer(view, ctypes.byref(buffer), 0) == 0
    address = ctypes.c_void_p.from_buffer(buffer).value
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address


@pytest.mark.parametrize("length", [PAGE, 0])
def test_a_page_behind_the_end_is_sigbus(path, length):
    code = (
        "import mmap\nfd = os.open(sys.argv[1], os.O_RDWR)\nm = mmap.mmap(fd, 0)\nassert m[8192:8193] == b'0'\n"
        "os.ftruncate(fd, int(sys.argv[2]))\nm[8192:8193]"
    )
    assert child(code, path, length, check=False).returncode == -signal.SIGBUS


def test_a_write_through_a_descriptor_reaches_a_read_only_mapper(path):
    code = (
        "import mmap\nfd = os.open(sys.argv[1], os.O_RDONLY)\nm = mmap.mmap(fd, 0, prot=mmap.PROT_READ)\n"
        "print(m[:1].decode(), flush=True)\nsys.stdin.readline()\nprint(m[:1].decode(), m[-1:].decode(), flush=True)"
    )
    command = [sys.executable, "-c", f"import os, sys\n{code}", path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as mapper:
        assert mapper.stdout is not None
        assert mapper.stdout.readline() == "0\n"
        with open(path, "r+b") as file:
            file.write(b"1" * SIZE)
        out, _ = mapper.communicate("go\n", timeout=30)
        assert out == "1 1\n"


LOCKS = (
    "import fcntl\nfd = os.open(sys.argv[1], os.O_RDWR)\n"
    "print(tried(fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB), tried(fcntl.flock, fd, fcntl.LOCK_SH | fcntl.LOCK_NB),"
    " tried(fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0), tried(fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10))"
)


def test_locks_hold_between_processes(same):
    def case(d):
        (d / "f").write_bytes(b"x" * 100)
        fd = os.open(d / "f", os.O_RDWR)
        found = [child(LOCKS, d / "f").stdout]
        fcntl.flock(fd, fcntl.LOCK_SH)
        found.append(child(LOCKS, d / "f").stdout)
        fcntl.flock(fd, fcntl.LOCK_EX)
        fcntl.lockf(fd, fcntl.LOCK_EX, 5, 5)
        found.append(child(LOCKS, d / "f").stdout)
        os.close(fd)
        found.append(child(LOCKS, d / "f").stdout)
        return found

    same(case)


# -- io_uring: a buffer that is registered stays pinned ---------------------------------------------------------

SETUP, REGISTER, REGISTER_BUFFERS, UNREGISTER_BUFFERS = 425, 427, 0, 1


class Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


def register(memory, length):
    """Register a mapping as a fixed buffer of a new ring; return the ring, or the name of the errno."""
    libc = ctypes.CDLL(None, use_errno=True)
    ring = libc.syscall(SETUP, 4, ctypes.create_string_buffer(120))
    assert ring >= 0, os.strerror(ctypes.get_errno())
    iov = Iovec((ctypes.c_char * length).from_buffer(memory) and _address(memory), length)

    def call():
        if libc.syscall(REGISTER, ring, REGISTER_BUFFERS, ctypes.byref(iov), 1) < 0:
            raise OSError(ctypes.get_errno(), "register")
        return ring

    result = tried(call)
    if isinstance(result, str):
        os.close(ring)
    return result


def test_a_mapping_of_an_object_in_ddr_is_a_fixed_buffer(path, mounted):
    if not mounted.passthrough:
        # A page of FUSE's own cache must not be pinned for long (FOLL_LONGTERM): the kernel may say no, kvd can't help.
        assert tried(os.stat, path).st_size == SIZE
        return
    path.write_bytes(b"0" * PINNED_SIZE)
    wait_for(lambda: os.getxattr(path, "user.kvd.state") == b"sealed")  # until then it is open as its writer had it
    fd = os.open(path, os.O_RDWR)
    memory = mmap.mmap(fd, PINNED_SIZE)
    ring = register(memory, PINNED_SIZE)
    assert isinstance(ring, int), ring
    memory[:6] = b"pinned"
    assert os.pread(fd, 6, 0) == b"pinned"
    os.close(ring)
    os.close(fd)
