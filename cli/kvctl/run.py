"""What every command has: the daemon, and where its words go."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from kvctl import names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from kvctl.client import Client
    from kvctl.exits import CtlError

COLUMNS: Final = 10_000
"""A line is as long as it is, and a terminal folds it; rich would cut names short to make a table fit."""


class Run:
    """One run of ``kvctl``.

    Parameters
    ----------
    client
        The daemon.
    as_json
        Print one JSON document instead of words.
    """

    def __init__(self, client: Client, *, as_json: bool) -> None:
        self.client = client
        self.as_json = as_json
        self.out = _console(stderr=False)
        self.err = _console(stderr=True)
        self._mount = ""
        self._asked: list[str] = []

    def inside(self, paths: Sequence[Path]) -> list[bytes]:
        """Return what the user's paths are within the mount."""
        self._mount = self.client.mount()
        found = [names.inside(path, self._mount) for path in paths]
        self._asked = [names.to_wire(path) for path in found]
        return found

    def everything(self) -> list[bytes]:
        """Return the path of all there is, within the mount."""
        self._mount = self.client.mount()
        return [b"/"]

    def document(self, value: Any) -> None:  # anything that JSON can say
        """Print the one JSON document."""
        sys.stdout.write(json.dumps(value) + "\n")

    def show(self, *parts: RenderableType) -> None:
        """Print for people: tables as they are on a terminal, aligned text without trailing blanks elsewhere."""
        if self.out.is_terminal:
            self.out.print(*parts, sep="\n", highlight=False)
            return
        with self.out.capture() as captured:
            self.out.print(*parts, sep="\n", highlight=False)
        sys.stdout.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))

    def complain(self, message: str) -> None:
        """Print one sentence to standard error."""
        self.err.print(f"kvctl: {message}", style="red" if self.err.is_terminal else "", markup=False, highlight=False)

    def complain_of(self, path: str, message: str) -> None:
        """Print why something could not be done to a name within the mount, which the message may hold already."""
        told = self._in_full(message, path)
        self.complain(names.show(f"{self._full(path)}: {message}" if told is None else told))

    def fail(self, error: CtlError) -> int:
        """Say why the command can't be done; return the exit status."""
        if self.as_json:
            self.document({"error": {"code": error.code, "message": str(error)}})
        told = (self._in_full(str(error), path) for path in self._asked)
        self.complain(names.show(next((message for message in told if message is not None), str(error))))
        return error.status

    def _full(self, path: str) -> str:
        """Return where a path within the mount is for everybody else."""
        return self._mount if path == "/" else self._mount.rstrip("/") + path

    def _in_full(self, message: str, path: str) -> str | None:
        """Return the daemon's words about a path, with the mount in front of it; None if they do not name it."""
        start, _, reason = message.partition(f"{path}: ")
        if not start and reason:
            return f"{self._full(path)}: {reason}"
        start, found, end = message.rpartition(f": {path}")
        return f"{start}: {self._full(path)}" if found and not end else None


def _console(*, stderr: bool) -> Console:
    # A name that the terminal's encoding lacks must not end the program.
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    # A progress bar has to know the terminal's real width.
    return Console(stderr=stderr, width=None if stderr and stream.isatty() else COLUMNS)
