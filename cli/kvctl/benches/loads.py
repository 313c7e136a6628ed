"""Runs of ``kvd-bench``: one load on one side, in processes of its own (csrc/bench/load.h)."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from kvctl.exits import CtlError, Exit
from kvctl.private import BIN, signals_held

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROGRAM: Final = BIN / "kvd-bench"
BLOCK_BYTES: Final = 1 << 20
"""What is read and written at once."""
DEPTH: Final = 32
"""Blocks in flight of a direct load."""
LOAD_S_MAX: Final = 600.0
"""A load that takes longer hangs: it is ended, and the benchmark fails."""

Kind: TypeAlias = Literal[
    "read", "map", "touch", "sum", "write", "direct-read", "direct-write", "open", "stat", "miss", "watch"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a load came to.

    Attributes
    ----------
    bytes
        Read or written.
    ops
        Files, or calls of the timed loads.
    errors
        Those of them that failed.
    error
        The errno name of the first.
    sum
        Of all words of the files (``map``).
    first_s
        From before the open to the first byte (``read`` with `first`).
    seconds
        From the start of the workers to the end of the last.
    """

    bytes: int
    ops: int
    errors: int
    error: str
    sum: int
    first_s: float
    seconds: float

    @property
    def gbs(self) -> float:
        """GB/s."""
        return self.bytes / self.seconds / 1e9

    @property
    def per_s(self) -> float:
        """Calls a second."""
        return self.ops / self.seconds

    def flawless(self, what: str) -> Tally:
        """Return this tally of a load in which no error may be.

        Raises
        ------
        CtlError
            If there was one.
        """
        if self.errors:
            told = "the bytes are not those that were written" if self.error == "EBADMSG" else self.error
            raise CtlError(f"{what}: {self.errors} of {self.ops} failed: {told}", Exit.FAILED, self.error or "EIO")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load.

    Attributes
    ----------
    kind
        What is done to each file.
    workers
        Processes.
    block_bytes
        Of a request.
    file_bytes
        Of a file to write, or of the memory to sum.
    depth
        Blocks in flight of a direct load.
    duration_ms
        Of a timed load (``open``, ``stat``, ``miss``).
    rounds
        Of changes (``watch``).
    stamped
        Check that what is read is what ``write`` wrote to the file of the same place in the list.
    first
        Ask for the first byte apart.
    allocate
        Allocate a file before it is written directly.
    """

    kind: Kind
    workers: int = 1
    block_bytes: int = BLOCK_BYTES
    file_bytes: int = 0
    depth: int = 1
    duration_ms: int = 0
    rounds: int = 1
    stamped: bool = False
    first: bool = False
    allocate: bool = False

    def command(self) -> list[str]:
        """Return the command line."""
        numbers = {
            "--workers": self.workers,
            "--block": self.block_bytes,
            "--bytes": self.file_bytes,
            "--depth": self.depth,
            "--ms": self.duration_ms,
            "--rounds": self.rounds,
        }
        flags = {"--stamped": self.stamped, "--first": self.first, "--allocate": self.allocate}
        words = [word for name, value in numbers.items() for word in (name, str(value))]
        return [str(PROGRAM), self.kind, *words, *(name for name, wanted in flags.items() if wanted)]

    def run(self, files: Sequence[Path]) -> Tally:
        """Run it on files, which end with it.

        Raises
        ------
        CtlError
            If it can't be run, or hangs.
        """
        names = b"".join(bytes(path) + b"\0" for path in files)
        process = None
        try:
            with signals_held() as restore:
                process = subprocess.Popen(
                    self.command(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    preexec_fn=restore,  # noqa: PLW1509 - it does nothing but one system call
                )
            out, err = process.communicate(names, timeout=LOAD_S_MAX)
        except FileNotFoundError:
            raise CtlError(f"{PROGRAM} is not installed", Exit.FAILED, "ENOENT") from None
        except subprocess.TimeoutExpired:
            raise CtlError(f"{self.kind}: hangs for {LOAD_S_MAX:g} s", Exit.FAILED, "ETIMEDOUT") from None
        finally:
            # Its workers end with it.
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()
        if process.returncode:
            raise CtlError(f"{self.kind}: {err.decode(errors='replace').strip()}", Exit.FAILED, "EIO")
        return Tally(**json.loads(out))
