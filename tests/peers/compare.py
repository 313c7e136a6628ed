"""KV chunks stored and loaded by the strongest peers, on plain file systems and through a kvd mount, in one run.

    make bench-peers [PEERS="lmcache_disk sglang --rounds 1"]
    compare.py [PEER ...] [--rounds N] [--chunks N] [--json FILE]

Every step is a process of its own, driven through the peer's own code (peer_*.py). In turns: store into a fresh folder;
load in another process; load again after a restart of everything, kvd included, with a dropped page cache. What comes
back is compared byte by byte. Exit status: 0, 1 (other bytes came back, or a peer that was asked for by name can't be
measured), 2 (usage).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environment import DRIVER, ROOT, CanNotInstallError, Environment
from rich.console import Console
from rich.table import Table

from kvctl.benches import ground, machine
from kvctl.benches.run import signals_end_it
from kvctl.exits import CtlError
from kvctl.private import KvdFailedError, PrivateKvd

CHUNKS = 256
CHUNK_BYTES = 2 << 20
ROUNDS = 3
STEP_S = 300
MARGIN_BYTES = 256 << 20
"""Of a tier or a tmpfs beyond the chunks: headers, folders, logs."""
GIVEN_S = "120s"
"""For kvd to copy to NVMe what it only has in DDR, when everything is restarted."""
STEPS = ("store", "load", "cold")
BAR = 3.0
BAR_PEERS = ("lmcache_disk", "sglang")
PROJECTS = {
    "plain": "",
    "lmcache_disk": "lmcache",
    "lmcache_fs": "lmcache",
    "sglang": "sglang",
    "vllm": "vllm",
    "mooncake": "mooncake",
}
"""The peers, and what is installed for them; files without a framework need nothing."""
IN_MEMORY = ("mooncake",)
"""They keep nothing in files: one place, and nothing is left after a restart."""
PLACES = ("disk", "tmpfs", "kvd")


class StepError(Exception):
    """A step of a peer failed; the message is its last word."""


@dataclass(kw_only=True)
class Found:
    """What was measured: GB/s for each peer, place and step, a value a round."""

    rates: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def add(self, peer: str, place: str, step: str, done: dict[str, Any]) -> None:
        """Add one step."""
        self.rates.setdefault(peer, {}).setdefault(place, {}).setdefault(step, []).append(
            done["bytes"] / done["seconds"] / 1e9
        )
        for what in ("wrong", "missing"):
            if done[what]:
                self.wrong.append(f"{peer} on {place}, {step}: {done[what]} chunks {what}")

    def median(self, peer: str, place: str, step: str) -> float | None:
        """Return GB/s, if that was measured."""
        values = self.rates.get(peer, {}).get(place, {}).get(step)
        return statistics.median(values) if values else None


class Comparison:
    """The places, and the rounds in them."""

    def __init__(self, stack: ExitStack, chunks: int, environment: Environment) -> None:
        self._chunks = chunks
        self._environment = environment
        total_bytes = chunks * CHUNK_BYTES
        scratch = stack.enter_context(ground.scratch(None))
        ground.need_space(scratch, 3 * total_bytes)
        plain = stack.enter_context(ground.plain_tmpfs(scratch, 2 * total_bytes + MARGIN_BYTES))
        settings = {
            "daemon": {"flush": GIVEN_S},
            "ddr": {"budget": 2 * total_bytes + MARGIN_BYTES, "burst": "12.5%", "idle": "24h"},
        }
        self._kvd = stack.enter_context(PrivateKvd(settings, parent=scratch))
        self._kvd.start()
        self.folders = {"disk": scratch / "disk", "tmpfs": plain, "kvd": self._kvd.mount}
        self.folders["disk"].mkdir()
        self.file_systems = {place: machine.file_system(folder) for place, folder in self.folders.items()}

    def measure(self, peer: str, place: str, found: Found) -> None:
        """Do all steps of one peer in one place.

        Raises
        ------
        StepError
            If one of them fails.
        """
        folder = self.folders[place] / peer
        folder.mkdir()
        try:
            if peer in IN_MEMORY:
                for done in self._step(peer, "both", folder):
                    found.add(peer, place, done["step"], done)
                return
            for step in ("store", "load"):
                found.add(peer, place, step, *self._step(peer, step, folder))
            if place != "tmpfs":
                self._restart(place)
                found.add(peer, place, "cold", *self._step(peer, "load", folder))
        finally:
            shutil.rmtree(folder)

    def _restart(self, place: str) -> None:
        if place == "kvd":
            if status := self._kvd.stop():
                raise KvdFailedError(f"kvd ended with status {status}")
            self._kvd.start()
        ground.drop_page_cache()

    def _step(self, peer: str, step: str, folder: Path) -> list[dict[str, Any]]:
        python = self._environment.python if PROJECTS[peer] else Path(sys.executable)
        command = [python, DRIVER, peer, step, folder, self._chunks, CHUNK_BYTES]
        done = subprocess.run(
            [str(word) for word in command],
            check=False,
            capture_output=True,
            text=True,
            timeout=STEP_S,
            env=self._environment.variables(),
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"step"')]
        if done.returncode or not lines:
            raise StepError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
        return lines


def compare(peers: list[str], rounds: int, chunks: int, environment: Environment, console: Console) -> dict[str, Any]:
    """Measure; return the document."""
    found = Found()
    for peer in peers:
        if project := PROJECTS[peer]:
            console.print(f"installing what {peer} needs", style="dim")
            try:
                environment.install(project, f"peer_{peer}")
            except CanNotInstallError as error:
                found.failed[peer] = f"can't be installed: {error}"
    facts = machine.facts()
    with ExitStack() as stack:
        comparison = Comparison(stack, chunks, environment)
        for number in range(rounds):
            for peer in peers:
                for place in PLACES[:1] if peer in IN_MEMORY else PLACES:
                    if peer in found.failed:
                        continue
                    console.print(f"round {number + 1} of {rounds}: {peer} on {place}", style="dim")
                    try:
                        comparison.measure(peer, place, found)
                    except (StepError, subprocess.TimeoutExpired) as error:
                        found.failed[peer] = f"failed on {place}: {error}"
        file_systems = comparison.file_systems
    return {
        "machine": facts,
        "file_systems": file_systems,
        "chunks": chunks,
        "chunk_bytes": CHUNK_BYTES,
        "rounds": rounds,
        "gbs": {
            peer: {place: {step: found.median(peer, place, step) for step in steps} for place, steps in places.items()}
            for peer, places in found.rates.items()
        },
        "values": found.rates,
        "kvd_vs": {peer: _against(found, ("plain", "kvd"), (peer, "disk")) for peer in found.rates},
        "mount_vs_disk": {
            peer: _against(found, (peer, "kvd"), (peer, "disk")) for peer in found.rates if peer not in IN_MEMORY
        },
        "failed": found.failed,
        "wrong": found.wrong,
    }


def _against(found: Found, ours: tuple[str, str], theirs: tuple[str, str]) -> dict[str, float]:
    """Return the ratio of two sides for each step that both have."""
    sides = ((step, found.median(*ours, step), found.median(*theirs, step)) for step in STEPS)
    return {step: our / their for step, our, their in sides if our and their}


def show(document: dict[str, Any], console: Console) -> None:
    """Print the table."""
    console.print(machine.sentence(document["machine"]))
    size_mib = document["chunks"] * document["chunk_bytes"] >> 20
    console.print(f"{document['chunks']} chunks, {size_mib} MiB, medians of {document['rounds']} rounds, GB/s")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("PEER", "ON", "STORE", "LOAD", "LOAD, RESTARTED", "STORE, LOAD, RESTARTED: KVD'S PLAIN FILES TO IT"):
        table.add_column(column, justify="left" if column in {"PEER", "ON"} else "right", no_wrap=True)
    for peer, places in document["gbs"].items():
        for place, steps in places.items():
            on = "memory, TCP" if peer in IN_MEMORY else document["file_systems"][place]["type"]
            ratios = document["kvd_vs"][peer] if place == "disk" else {}
            numbers = [f"{steps[step]:.2f}" if steps.get(step) else "-" for step in STEPS]
            table.add_row(peer, on, *numbers, "   ".join(f"{ratios[step]:.1f}" for step in STEPS if step in ratios))
    console.print(table)
    for peer in BAR_PEERS:
        for step, ratio in document["kvd_vs"].get(peer, {}).items():
            verdict = "pass" if ratio >= BAR else "missed"
            console.print(f"{step} at least {BAR:g} times {peer}: {ratio:.1f}, {verdict}")
    for peer, reason in document["failed"].items():
        console.print(f"{peer}: {reason}", style="red", markup=False)
    for line in document["wrong"]:
        console.print(f"WRONG: {line}", style="bold red", markup=False)


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="compare.py", description="Peers on plain file systems and through kvd.")
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(PROJECTS)}; all, if none is named")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--chunks", type=int, default=CHUNKS)
    parser.add_argument("--json", type=Path, help="write the document to this file, too")
    parser.add_argument("--environment", type=Path, default=ROOT / "build/peers", help="where the peers are installed")
    arguments = parser.parse_args(words)
    if unknown := [peer for peer in arguments.peers if peer not in PROJECTS]:
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(PROJECTS)}")
    if arguments.rounds < 1 or arguments.chunks < 1:
        parser.error("at least one round and one chunk are needed")
    return arguments


def main(words: list[str]) -> int:
    """Run; return the exit status."""
    arguments = _arguments(words)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    # kvd itself is what the others are held against.
    peers = list(dict.fromkeys(["plain", *(arguments.peers or PROJECTS)]))
    environment = Environment(arguments.environment.resolve())
    try:
        with signals_end_it():
            document = compare(peers, arguments.rounds, arguments.chunks, environment, console)
    except (CtlError, KvdFailedError) as error:
        console.print(f"bench-peers: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; nothing is left running or mounted")
        return 130
    show(document, console)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    named = [peer for peer in arguments.peers if peer in document["failed"]]
    return 1 if document["wrong"] or named else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
