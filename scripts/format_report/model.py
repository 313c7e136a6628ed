"""The worker as an object: requests with deadlines, and what it says when it fails."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

ANSWER_S = 300.0
STOP_S = 10.0
WORDS_MAX = 400
"""Characters of what a worker that failed said last."""


class WorkerError(Exception):
    """The model can't be used; the message is the last that it said."""


class Model:
    """The model's process.

    Parameters
    ----------
    python
        The interpreter of its environment.
    script
        The worker.
    log
        A file for what it says beside its answers.
    threads
        That it computes with.
    """

    def __init__(self, python: Path, script: Path, log: Path, threads: int) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [str(python), str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # The model is in the environment: nothing is fetched, and nobody is told.
                env={
                    **os.environ,
                    "HF_HUB_OFFLINE": "1",
                    "TRANSFORMERS_VERBOSITY": "error",
                    "PYTHONWARNINGS": "ignore",
                },
            )
        self._pending = b""
        self._threads = threads
        self.description: dict[str, Any] = {}

    def __enter__(self) -> Self:
        try:
            self.description = self._ask(do="load", threads=self._threads)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def prefill(self, text: str, *, prefix: int, following: int, dtype: str, file: Path) -> None:
        """Write the cache of a text's first `prefix` tokens.

        Raises
        ------
        WorkerError
            If the text is too short, or the worker fails.
        """
        self._ask(do="prefill", text=text, prefix=prefix, next=following, dtype=dtype, file=str(file))

    def judge(self, file: Path) -> tuple[list[int], list[float]]:
        """Return, for each token that follows, the likeliest next one, and the real one's negative logarithm (nats).

        Raises
        ------
        WorkerError
            If the worker fails.
        """
        answer = self._ask(do="judge", file=str(file))
        return answer["top"], answer["nll"]

    def _ask(self, **request: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._line())
        except (OSError, EOFError, ValueError) as error:
            raise WorkerError(self._last_words() or str(error)) from error
        return answer

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        stdout = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(ANSWER_S):
                    raise TimeoutError(f"no answer within {ANSWER_S:.0f} s")
                part = os.read(stdout, 1 << 16)
                if not part:
                    raise EOFError("the model's process ended")
                self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][-WORDS_MAX:] if lines else ""

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
