"""Two NVMe directories, one of them on a drive that hangs or fails: what is there is an I/O error at once, all else goes on.

Each life ends as every other: a clean fsck with every checksum, which shows that nothing was lost or left lying about.
"""

from __future__ import annotations

import errno
import time

import pytest

from support.content import MIB, copy_files, fill, wait_until
from support.drives import BOUND_S, OFFLINE, Drives, drives


@pytest.mark.parametrize("kinds", [("read",), ()], ids=["reads", "all"])
def test_a_drive_that_hangs_while_it_is_read(kinds):
    with drives() as made:
        cold = made.fill_cold()
        warm = made.fill("warm", seed=9)
        bad, good = made.on_bad(cold), made.on_good(cold)
        made.disk.hang(*kinds)
        made.check_eio(bad[:1])
        made.wait_state("offline", "probing")
        status = made.mounted.kvd.status()
        assert status["state"] == "degraded"
        assert any(str(made.disk.path) in reason for reason in status["reasons"]), status["reasons"]
        found = made.directory()
        assert found["reason"]
        assert found["offline_count"] == 1
        before = made.disk.tell(hang=kinds or ("read", "write", "fsync", "names", "statfs"))["counts"].get("read", 0)
        made.check_eio(bad)
        made.check([*good, warm])
        assert len(list(made.root.iterdir())) == len(made.stored)
        made.fill("new", seed=10)
        made.mounted.kvd.kvctl("demote", str(made.root / "new"))
        assert made.on_good([made.root / "new"])
        after = made.disk.tell(hang=kinds or ("read", "write", "fsync", "names", "statfs"))["counts"].get("read", 0)
        assert after - before <= 1, "nothing but a probe asks it"
        made.disk.heal()
        made.wait_state("online")
        assert made.mounted.kvd.status()["state"] == "ok"
        made.check(cold)


@pytest.mark.parametrize("kind", ["write", "fsync", "names", "statfs"])
def test_a_drive_that_hangs_while_it_is_written(kind):
    with drives() as made:
        paths = [made.fill(f"{number}", seed=number) for number in range(6)]
        made.disk.hang(kind)
        began_s = time.monotonic()
        made.mounted.kvd.kvctl("demote", *map(str, paths))
        assert time.monotonic() - began_s < 2 * BOUND_S
        assert made.on_good(paths) == paths, "in spite of one drive all are durable"
        made.wait_state("offline", "probing")
        made.check()
        made.disk.heal()
        made.wait_state("online")
        wait_until(lambda: not made.on_bad(paths), "what was begun there is swept")


def test_a_start_with_a_drive_that_hangs():
    with drives() as made:
        cold = made.fill_cold()
        bad, good = made.on_bad(cold), made.on_good(cold)
        for ending in ("stop", "kill"):
            made.mounted.kvd.kvctl("demote", *map(str, cold))
            getattr(made.mounted.kvd, ending)()
            made.disk.hang()
            began_s = time.monotonic()
            made.mounted.kvd.start()
            assert time.monotonic() - began_s < 2 * BOUND_S
            assert made.directory()["state"] in ("offline", "probing")
            assert {path.name for path in made.root.iterdir()} == {path.name for path in cold}, "nothing has vanished"
            made.check_eio(bad)
            made.check(good)
            made.disk.heal()
            made.wait_state("online")
            made.check(cold)


def test_a_start_with_a_drive_that_fails():
    with drives() as made:
        cold = made.fill_cold()
        made.mounted.kvd.stop()
        made.disk.fail("names", "read", "write", "fsync", "statfs")
        made.mounted.kvd.start()
        assert made.directory()["state"] in ("offline", "probing")
        assert len(list(made.root.iterdir())) == len(cold)
        made.disk.heal()
        made.wait_state("online")


def stop_while_it_hangs(made: Drives) -> None:
    """Stop the daemon: it is done within its bound. The kernel ends a process only when the drive has let go of it."""
    kvd = made.mounted.kvd
    made.mounted.claim("objects could not be flushed")
    began_s = time.monotonic()
    kvd.ask_to_stop()
    wait_until(lambda: "could not be flushed" in kvd.log.read_text(), "the flush is given up")
    wait_until(lambda: str(kvd.mount) not in kvd.mounts(), "it is unmounted")
    assert time.monotonic() - began_s < 3 * BOUND_S
    made.disk.heal()
    assert kvd.stop() == 74
    kvd.start()
    made.wait_state("online")
    made.check()


def test_a_stop_with_a_drive_that_hangs_is_done_and_keeps_what_is_in_ddr():
    with drives(only_bad=True) as made:
        made.fill("cold")
        made.mounted.kvd.kvctl("demote", str(made.root / "cold"))
        made.fill("dirty", seed=1)
        made.disk.hang()
        stop_while_it_hangs(made)


def test_a_stop_whose_flush_hangs_is_done():
    with drives(only_bad=True) as made:
        for number in range(8):
            made.fill(f"{number}", MIB, number)
        made.disk.hang("write")
        stop_while_it_hangs(made)


def test_reads_that_fail_are_noted_with_their_place_and_others_go_on():
    with drives(claims=(OFFLINE, "object can't be read")) as made:
        cold = made.fill_cold()
        (first, *_), good = made.on_bad(cold), made.on_good(cold)
        (file,) = copy_files(made.mounted.kvd, first)
        made.disk.fail("read")
        made.check_eio([first])
        made.check(good)
        (fault, *_) = [fault for fault in made.mounted.kvd.status()["faults"] if fault["path"] == f"/{first.name}"]
        assert "can't be read" in fault["what"]
        assert file.name
        made.disk.heal()
        made.wait_state("online")
        made.check([first])


def test_writes_that_fail_go_elsewhere_and_turn_it_offline():
    with drives() as made:
        made.disk.fail("write", "fsync")
        paths = [made.fill(f"{number}", seed=number) for number in range(8)]
        made.mounted.kvd.kvctl("demote", *map(str, paths))
        assert made.on_good(paths) == paths
        made.wait_state("offline", "probing")
        made.check()


def test_without_any_drive_writers_are_slowed_and_refused_and_go_on_when_it_is_back():
    claims = (OFFLINE, "demotion failed")
    with drives(only_bad=True, ddr={"budget": 16 * MIB, "burst": 8 * MIB}, claims=claims) as made:
        made.disk.fail("write")
        refused = 0
        for number in range(12):
            path = made.root / f"{number}"
            try:
                made.stored[path] = fill(path, 4 * MIB, number)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                path.unlink()
                refused += 1
        assert refused
        made.check()
        made.disk.heal()
        made.wait_state("online")
        for number in range(12, 18):
            made.fill(f"{number}", 4 * MIB, number)


@pytest.mark.parametrize("only_bad", [False, True])
def test_a_full_drive(only_bad):
    with drives(only_bad=only_bad, claims=("demotion failed",)) as made:
        paths = [made.fill(f"{number}", MIB, number) for number in range(6)]
        made.disk.tell(full=True)
        done = made.mounted.kvd.kvctl("demote", *map(str, paths), check=False)
        assert made.directory()["state"] == "online", "a full drive is a good drive"
        if only_bad:
            assert done.returncode == 6, done
            made.check()
            assert not made.on_bad(paths), "no half copy is left"
            made.disk.heal()
            demote = "demote", *map(str, paths)
            wait_until(lambda: made.mounted.kvd.kvctl(*demote, check=False).returncode == 0, "there is room again")
        else:
            assert done.returncode == 0, done
            assert made.on_good(paths) == paths


def test_a_drive_that_becomes_read_only():
    with drives() as made:
        cold = made.fill_cold()
        made.disk.tell(read_only=True)
        path = made.fill("new", seed=9)
        other = made.fill("other", seed=10)
        made.mounted.kvd.kvctl("demote", str(path), str(other))
        assert made.on_good([path, other]) == [path, other]
        made.wait_state("offline", "probing")
        made.check_eio(made.on_bad(cold))


def test_a_drive_that_is_unmounted_is_not_filled_and_nothing_vanishes():
    with drives() as made:
        cold = made.fill_cold()
        bad, good = made.on_bad(cold), made.on_good(cold)
        made.disk.unmount()
        new = [made.fill(f"new{number}", seed=20 + number) for number in range(4)]
        made.mounted.kvd.kvctl("demote", *map(str, new))
        assert made.on_good(new) == new
        assert not list(made.disk.path.iterdir()), "the mount point stays empty"
        made.check_eio(bad)
        made.check([*good, *new])
        made.wait_state("offline", "probing")
        made.disk.mount()
        made.wait_state("online")
        made.check(cold)


def test_an_object_in_ddr_whose_copy_is_on_a_dead_drive_is_copied_elsewhere():
    with drives() as made:
        paths = [made.fill(f"{number}", seed=number) for number in range(4)]
        made.mounted.kvd.kvctl("sync", *map(str, paths))
        bad = made.on_bad(paths)
        assert bad
        made.disk.fail("names", "read", "write", "fsync", "statfs")
        made.fill("more", seed=9)
        made.fill("another", seed=10)
        made.mounted.kvd.kvctl("demote", str(made.root / "more"), str(made.root / "another"))
        made.wait_state("offline", "probing")
        made.check(paths)
        made.mounted.kvd.kvctl("demote", *map(str, paths))
        assert made.on_good(paths) == paths
        made.check(paths)
        made.disk.heal()
        made.wait_state("online")
        wait_until(lambda: not made.on_bad(paths), "the removals that were owed are done")
