"""``sessions``: what a client waits for the answer about one session, while there are very many.

Questions come a thousand a second, one after the other over one connection. A question that had to wait because the one before it
took too long counts from when it was due; what the client's own timer was late does not count.
"""

from __future__ import annotations

import random
import statistics
import time
from contextlib import ExitStack, contextmanager
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

from kvctl.benches import ground, many
from kvctl.benches.outcome import Outcome, Series
from kvctl.exits import UsageError
from kvctl.private import PrivateKvd
from kvd.client import Client, Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

RATE: Final = 1000
"""Questions a second."""
FOLDER_SESSIONS: Final = 1000
SESSIONS_MIN: Final = 100
FILE_BYTES: Final = 1024
"""Of the disk for a session: its inode, its name and its rows."""
CHECK_S: Final = 600.0
TTL_S: Final = 86_400.0
LEASE_S: Final = 60.0
P50_BAR_US: Final = 150.0
P99_BAR_US: Final = 2000.0
US: Final = 1e6
PERCENT: Final = 100
P99: Final = 99


class _Asker:
    """A client that asks of one session after another."""

    def __init__(self, client: Client, found: many.Many, seed: int) -> None:
        self._client = client
        self._found = found
        self._random = random.Random(seed)  # noqa: S311
        self._path = ""
        self._held = ExitStack()
        self._lease: Lease

    def _take(self) -> None:
        self._path = f"/{self._found.name(self._random.randrange(self._found.objects))}"
        self._lease = self._held.enter_context(self._client.lease(self._path, LEASE_S))

    def steps(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield questions by turns, all of a session before the next one, for ever."""
        client = self._client
        for name in cycle(("lease", "renew", "resume", "describe", "ttl", "release", "end")):
            match name:
                case "lease":
                    yield name, self._take
                case "renew":
                    yield name, lambda: self._lease.renew(LEASE_S)
                case "resume":
                    yield name, lambda: client.resume(self._path)
                case "describe":
                    yield name, lambda: client.session(self._path)
                case "ttl":
                    yield name, lambda: client.ttl(self._path, TTL_S, refresh=True)
                case "release":
                    yield name, lambda: client.release(self._path)
                case _:
                    yield name, self._held.close


def _ask(questions: Iterator[tuple[str, Callable[[], object]]], count: int) -> list[tuple[str, float]]:
    """Ask at `RATE`; return which question took how many microseconds."""
    took: list[tuple[str, float]] = []
    due_s = time.perf_counter()
    for _ in range(count):
        name, question = next(questions)
        began_s = due_s
        if (early_s := due_s - time.perf_counter()) > 0:
            time.sleep(early_s)
            began_s = time.perf_counter()
        question()
        took.append((name, (time.perf_counter() - began_s) * US))
        due_s += 1 / RATE
    return took


def percentile(values: list[float], percent: int) -> float:
    """Return the value that so many in a hundred don't exceed."""
    return sorted(values)[max(0, -(-len(values) * percent // PERCENT) - 1)]


@contextmanager
def _kvd(folder: Path, settings: Mapping[str, Mapping[str, Any]], sessions: int) -> Iterator[tuple[Client, many.Many]]:
    with PrivateKvd(settings, parent=folder) as kvd:
        folders = max(1, sessions // FOLDER_SESSIONS)
        found = many.fill(kvd.root / "state", kvd.nvme_dirs, objects=sessions, folders=folders)
        kvd.start()
        ground.until_checked(kvd.socket, sessions, CHECK_S)
        with Client(kvd.socket.with_suffix(".client")) as client:
            for number in range(sessions):
                client.ttl(f"/{found.name(number)}", TTL_S)
            yield client, found


def measure(
    folder: Path,
    settings: Mapping[str, Mapping[str, Any]],
    sessions: int,
    duration_ms: int,
    rounds: int,
    step: Callable[[], None],
) -> list[Outcome]:
    """Measure leases and changes of state with so many sessions, each of which has a time to live.

    Raises
    ------
    UsageError
        If there are too few.
    """
    if sessions < SESSIONS_MIN:
        raise UsageError(f"--objects {sessions}: at least {SESSIONS_MIN} sessions are measured")
    ground.need_space(folder, sessions * FILE_BYTES)
    count = max(SESSIONS_MIN, RATE * duration_ms // 1000)
    ours: list[list[tuple[str, float]]] = []
    peer: list[list[tuple[str, float]]] = []
    with _kvd(folder, settings, sessions) as (client, found):
        step()
        questions = _Asker(client, found, sessions).steps()
        nothing = cycle([("exists", lambda: client.exists(["/"]))])
        for _ in range(rounds):
            ours.append(_ask(questions, count))
            peer.append(_ask(nothing, count))
            step()
    return [
        _outcome("session_p50_us", 50, P50_BAR_US, sessions, ours, peer),
        _outcome("session_p99_us", P99, P99_BAR_US, sessions, ours, peer),
    ]


def _outcome(
    key: str,
    percent: int,
    bar: float,
    sessions: int,
    ours: list[list[tuple[str, float]]],
    peer: list[list[tuple[str, float]]],
) -> Outcome:
    def series(name: str, rounds: list[list[tuple[str, float]]]) -> Series:
        values = tuple(percentile([took for _, took in each], percent) for each in rounds)
        return Series(name=name, unit="us", values=values)

    kinds: dict[str, list[float]] = {}
    for name, took in (each for one in ours for each in one):
        kinds.setdefault(name, []).append(took)
    told = ", ".join(f"{name} {percentile(values, percent):.0f}" for name, values in kinds.items())
    found = series("kvd", ours)
    return Outcome(
        key=key,
        what=f"a question about one of {sessions:,} sessions, {RATE:,} a second: {percent} % are answered in",
        value=statistics.median(found.values),
        unit="us",
        bar=bar,
        at_most=True,
        ours=found,
        peer=series("whether / is there", peer),
        note=told,
    )
