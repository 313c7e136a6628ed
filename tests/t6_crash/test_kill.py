"""The daemon is killed while it works, at moments drawn by seed: what it promised is there, and nothing is torn."""

import hashlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

from support import generations
from support.content import MIB, file_bytes, usage, wait_until
from support.mounted import start_kvd

WRITER = Path(generations.__file__)
WRITERS = 2
ROUNDS = 3
LIFE_S = (0.05, 0.9)


class Promises:
    """What the writers were told was sealed, what synced, and what they were about to do."""

    def __init__(self):
        self.sealed = defaultdict(int)
        self.synced = defaultdict(int)
        self.attempted = defaultdict(set)
        self.last = defaultdict(int)

    def hear(self, line):
        word, name, generation = line.split()
        self.attempted[name].add(int(generation))
        self.last[name] = int(generation)
        if word != "renaming":
            self.sealed[name] = int(generation)
        if word == "synced":
            self.synced[name] = int(generation)

    def check(self, folder, *, ddr_lost):
        """Compare with what is there; afterwards that is the new truth."""
        least = self.sealed
        if ddr_lost:  # a synced object that another replaced, which nobody synced, is gone with its name
            least = {name: generation for name, generation in self.synced.items() if self.last[name] == generation}
        names = {path.name for path in folder.iterdir() if path.suffix != ".tmp"}
        found = {name: generations.generation_of((folder / name).read_bytes()) for name in names}
        for name, generation in least.items():
            assert found.get(name, -1) >= generation, f"{name}: {found.get(name)}, promised {generation}"
            assert found[name] in self.attempted[name]
        for path in folder.glob("*.tmp"):  # whole, or absent; or never closed and then its last fsync
            generations.generation_of(path.read_bytes())
        self.sealed = defaultdict(int, found)


def write_until_killed(kvd, folder, seed, promises, life_s, during):
    """Let writers run, and something else besides, until the daemon is killed in the middle of it."""
    writers = [
        subprocess.Popen([sys.executable, WRITER, folder, str(seed * 100 + number)], stdout=subprocess.PIPE, text=True)
        for number in range(WRITERS)
    ]
    lines = [[] for _ in writers]
    hearers = [
        threading.Thread(target=lambda w=writer, mine=mine: mine.extend(w.stdout))
        for writer, mine in zip(writers, lines, strict=True)
    ]
    for hearer in hearers:
        hearer.start()
    wait_until(lambda: all(lines), "the writers write")
    helper = subprocess.Popen(during, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) if during else None
    time.sleep(life_s)  # the moment of death, drawn by seed: not a wait for something
    kvd.kill()
    for process in (*writers, *([helper] if helper else [])):
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            pytest.fail("a client hangs on a mount whose daemon is dead")
    for writer, hearer in zip(writers, hearers, strict=True):
        hearer.join()
        writer.stdout.close()
    for line in sorted((line for mine in lines for line in mine if line.endswith("\n")), key=lambda li: li.split()[1]):
        promises.hear(line)


def shell_loop(kvd, folder, *commands):
    """Return a command line that runs kvctl commands in a loop until one can't reach the daemon."""
    kvctl = Path(sys.executable).with_name("kvctl")
    parts = [f"{kvctl} --socket {kvd.socket} {command} {folder}; [ $? = 3 ] && exit" for command in commands]
    return ["sh", "-c", f"while :; do {'; '.join(parts)}; done"]


def check_books(kvd):
    wait_until(lambda: kvd.status()["leased"] == 0, "nobody has anything open")
    for tier, top in (("ddr", kvd.ddr), ("nvme", kvd.nvme_dirs[0] / "objects")):
        line = usage(kvd, tier)
        assert (line["used_bytes"], line["reserved_bytes"]) == (file_bytes(top), 0), tier


DURING = {
    "writing": (),
    "demotion": ("demote",),
    "promotion": ("demote", "promote"),
    "sync": ("sync",),
}


@pytest.mark.parametrize(
    ("during", "passthrough"),
    [("writing", "auto"), ("writing", "off"), ("demotion", "off"), ("promotion", "auto"), ("sync", "off")],
)
def test_a_kill_in_the_middle_of(during, passthrough):
    draw = random.Random(f"{during}{passthrough}")
    settings = {"fuse": {"passthrough": passthrough}, "ddr": {"budget": 16 * MIB, "burst": 8 * MIB, "idle": "50ms"}}
    with start_kvd(settings) as running:
        kvd, folder = running.kvd, running.root / "f"
        folder.mkdir()
        promises = Promises()
        for number in range(ROUNDS):
            helper = shell_loop(kvd, folder, *DURING[during]) if DURING[during] else None
            write_until_killed(kvd, folder, number + 1, promises, draw.uniform(*LIFE_S), helper)
            ddr_lost = number == ROUNDS - 1
            if ddr_lost:  # a power cut, seen from the tiers: memory is gone
                subprocess.run(["umount", "-l", kvd.ddr], check=True)
            kvd.start()
            promises.check(folder, ddr_lost=ddr_lost)
            check_books(kvd)


def test_a_kill_in_the_middle_of_the_last_flush():
    draw = random.Random(5)
    with start_kvd({"ddr": {"budget": 64 * MIB}}) as running:
        kvd, root = running.kvd, running.root
        stored = {}
        for number in range(ROUNDS):
            for index in range(12):
                data = draw.randbytes(2 * MIB)
                (root / f"{number}-{index}").write_bytes(data)
                stored[f"{number}-{index}"] = hashlib.sha256(data).hexdigest()
            kvd._process.send_signal(signal.SIGTERM)
            time.sleep(draw.uniform(0, 0.25))  # the moment of death
            kvd.kill()
            kvd.start()
            for name, expected in stored.items():
                assert hashlib.sha256((root / name).read_bytes()).hexdigest() == expected, name
            check_books(kvd)


def test_a_snapshot_of_state_and_nvme_starts_with_what_was_synced(tmp_path_factory):
    """What a power cut leaves: the files of a moment, without DDR."""
    with start_kvd({"ddr": {"budget": 16 * MIB}}) as running:
        kvd, folder = running.kvd, running.root / "f"
        folder.mkdir()
        promises = Promises()
        write_until_killed(kvd, folder, 1, promises, 0.8, None)
        snapshot = tmp_path_factory.mktemp("snapshot", numbered=True)
        for path in (kvd.root / "state", *kvd.nvme_dirs):
            shutil.copytree(path, snapshot / path.name)
        kvd.start()
        promises.check(folder, ddr_lost=False)
        kvd.stop()
        for path in (kvd.root / "state", *kvd.nvme_dirs):
            shutil.rmtree(path)
            shutil.copytree(snapshot / path.name, path)
        kvd.start()
        promises.check(folder, ddr_lost=True)
        check_books(kvd)
