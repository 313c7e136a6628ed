"""Both sides of each speed claim, interleaved in one run: medians and their ratio.

- read: read() in 1 MiB blocks of a 512 MiB object in DDR, against the same bytes on plain tmpfs
- mmap: the sum over a fresh mapping of the same two files
- cold: `cat` of 32 demoted objects of 16 MiB through the mount, against `cat` of the very files that kvd keeps them in,
  both with a cold page cache
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from typing import TYPE_CHECKING

from private_kvd import PrivateKvd

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 7
COLD_ROUNDS = 11
BLOCK_BYTES = 1 << 20
BIG_BYTES = 512 << 20
COLD_COUNT = 32
COLD_BYTES = 16 << 20
DROP_PAGE_CACHE = "1"
HUGE_PAGE_BYTES = 2 << 20
WARM_BYTES = 1400 << 20
DIRECT_THREADS = 4

console = Console(highlight=False)


@dataclass
class Pair:
    """GB/s of the two sides of a claim, a value a round."""

    name: str
    peer: str
    goal: float | None
    ours_gbs: list[float] = field(default_factory=list)
    peer_gbs: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Median of ours over median of the peer's."""
        return statistics.median(self.ours_gbs) / statistics.median(self.peer_gbs)


def read_blocks(path: Path) -> int:
    """Read a file in 1 MiB blocks; return the bytes."""
    block = bytearray(BLOCK_BYTES)
    total = 0
    fd = os.open(path, os.O_RDONLY)
    try:
        while count := os.readv(fd, [block]):
            total += count
    finally:
        os.close(fd)
    return total


def sum_mapping(path: Path) -> int:
    """Sum a file over a fresh mapping; return the bytes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as mapping:
            words = np.frombuffer(mapping, dtype=np.uint64)
            int(words.sum())
            del words
    finally:
        os.close(fd)
    return size


def cat(paths: list[Path]) -> int:
    """Run `cat` over files; return their bytes."""
    subprocess.run(["cat", *map(str, paths)], stdout=subprocess.DEVNULL, check=True)
    return COLD_COUNT * COLD_BYTES


def read_direct(paths: list[Path]) -> int:
    """Read files as fast as the disk gives them: O_DIRECT, 1 MiB requests, four in flight, huge pages."""

    def read(path: Path) -> int:
        buffer = mmap.mmap(-1, 2 * HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        buffer.madvise(mmap.MADV_HUGEPAGE)
        start = -ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % HUGE_PAGE_BYTES
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            with memoryview(buffer)[start : start + BLOCK_BYTES] as block:
                return sum(os.preadv(fd, [block], at) for at in range(0, COLD_BYTES, BLOCK_BYTES))
        finally:
            os.close(fd)

    with ThreadPoolExecutor(DIRECT_THREADS) as threads:
        return sum(threads.map(read, paths))


def rate_gbs(work: Callable[[], int]) -> float:
    """Return the rate of one piece of work."""
    start_s = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - start_s) / 1e9


def drop_page_cache() -> None:
    """Make the next read of a disk file a cold one."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text(DROP_PAGE_CACHE)


def touch_memory(kvd: PrivateKvd) -> None:
    """Write and drop as much as is measured: memory that a virtual machine never used is slow once, on both sides."""
    path = kvd.mount / "touch"
    with path.open("wb") as file:
        for _ in range(WARM_BYTES // BLOCK_BYTES):
            file.write(bytes(BLOCK_BYTES))
    path.unlink()


def warm(kvd: PrivateKvd, plain: Path) -> list[Pair]:
    """Measure reads and mappings of an object in DDR."""
    content = np.random.default_rng(1).integers(0, 1 << 63, BIG_BYTES // 8, dtype=np.uint64).tobytes()
    ours, peer = kvd.mount / "big", plain / "big"
    for path in (ours, peer):
        path.write_bytes(content)
    pairs = [
        Pair(name="read() 1 MiB, DDR", peer="plain tmpfs", goal=0.9),
        Pair(name="sum over mmap, DDR", peer="plain tmpfs", goal=0.9),
    ]
    for _ in range(ROUNDS):
        for pair, work in zip(pairs, (read_blocks, sum_mapping), strict=True):
            pair.ours_gbs.append(rate_gbs(lambda work=work: work(ours)))
            pair.peer_gbs.append(rate_gbs(lambda work=work: work(peer)))
    peer.unlink()
    ours.unlink()
    return pairs


def cold(kvd: PrivateKvd) -> tuple[Pair, Pair]:
    """Measure reads of demoted objects."""
    folder = kvd.mount / "cold"
    folder.mkdir()
    random = np.random.default_rng(2)
    ours = [folder / f"{index:02d}" for index in range(COLD_COUNT)]
    for path in ours:
        path.write_bytes(random.bytes(COLD_BYTES))
    kvd.kvctl("demote", str(folder))
    theirs = sorted(path for path in kvd.nvme_dirs[0].glob("objects/*/*/*") if path.stat().st_size == COLD_BYTES)
    assert len(theirs) == COLD_COUNT
    pair = Pair(name=f"cold, {COLD_COUNT} x 16 MiB", peer="cat of the same files", goal=2.0)
    limit = Pair(name="the same", peer="O_DIRECT, the limit", goal=None)
    for _ in range(COLD_ROUNDS):
        kvd.kvctl("demote", str(folder))
        drop_page_cache()
        pair.ours_gbs.append(rate_gbs(lambda: cat(ours)))
        drop_page_cache()
        pair.peer_gbs.append(rate_gbs(lambda: cat(theirs)))
        limit.peer_gbs.append(rate_gbs(lambda: read_direct(theirs)))
    limit.ours_gbs = pair.ours_gbs
    return pair, limit


def main() -> None:
    """Measure, print the table and the BENCH line."""
    if os.geteuid() != 0:
        sys.exit("bench: needs root, to drop the page cache and for FUSE passthrough")
    plain = Path(tempfile.mkdtemp(prefix="kvd-bench-", dir="/dev/shm"))
    try:
        with PrivateKvd({"ddr": {"budget": "1536MiB", "burst": "128MiB", "idle": "1h"}}) as kvd:
            kvd.start()
            touch_memory(kvd)
            pairs = [*warm(kvd, plain), *cold(kvd)]
    finally:
        shutil.rmtree(plain, ignore_errors=True)
    console.print(f"kvd on Linux {platform.release()}, {os.cpu_count()} CPUs; medians in GB/s, spread of kvd's rounds")
    table = Table()
    for column in ("what", "kvd", "peer", "peer is", "ratio", "goal", "spread"):
        table.add_column(column, justify="left" if column in ("what", "peer is") else "right")
    for pair in pairs:
        table.add_row(
            pair.name,
            f"{statistics.median(pair.ours_gbs):.2f}",
            f"{statistics.median(pair.peer_gbs):.2f}",
            pair.peer,
            f"{pair.ratio:.2f}",
            "" if pair.goal is None else f"{pair.goal:.1f}",
            f"{min(pair.ours_gbs):.1f}-{max(pair.ours_gbs):.1f}",
        )
    console.print(table)
    names = ("read_ratio", "mmap_ratio", "cold_vs_cat", "cold_vs_direct")
    print("BENCH " + json.dumps({name: round(pair.ratio, 3) for name, pair in zip(names, pairs, strict=True)}))


if __name__ == "__main__":
    main()
