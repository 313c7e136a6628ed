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


class Session:
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

    def inside(self, paths: Sequence[Path]) -> list[bytes]:
        """Return what the user's paths are within the mount."""
        mount = self.client.mount()
        return [names.inside(path, mount) for path in paths]

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
        """Print why something could not be done to a name, which the message may hold already."""
        self.complain(names.show(message if path in message else f"{path}: {message}"))

    def fail(self, error: CtlError) -> int:
        """Say why the command can't be done; return the exit status."""
        if self.as_json:
            self.document({"error": {"code": error.code, "message": str(error)}})
        self.complain(names.show(str(error)))
        return error.status


def _console(*, stderr: bool) -> Console:
    # A name that the terminal's encoding lacks must not end the program.
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    # A progress bar has to know the terminal's real width.
    return Console(stderr=stderr, width=None if stderr and stream.isatty() else COLUMNS)
