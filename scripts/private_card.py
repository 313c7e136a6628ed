"""A card model (kvd-card) of one's own: for the demo and the tests. Leaves no process and no socket behind."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from private_kvd import signals_held

from kvdriver import cardmodel

if TYPE_CHECKING:
    import subprocess
    from types import TracebackType


class CardFailedError(Exception):
    """The card model did not do what it should; the message has its output."""


class PrivateCard:
    """One kvd-card on a socket in a folder of its own.

    Parameters
    ----------
    options
        Further options of the program.
    """

    def __init__(self, *options: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvd-card-")
        self._options = options
        self.socket = Path(self._folder.name) / "card.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """How a daemon names it."""
        return f"vfio-user:{self.socket}"

    def start(self) -> Self:
        """Start it and wait until it listens."""
        try:
            with signals_held() as restore:
                self._process = cardmodel.start(self.socket, *self._options, start_new_session=True, preexec_fn=restore)
            cardmodel.until_listening(self._process, self.socket)
        except BaseException as error:  # nobody else ends what was not entered
            self.close()
            if isinstance(error, OSError):
                raise CardFailedError(error.strerror) from error
            raise
        return self

    def kill(self) -> None:
        """End it without warning."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it if it runs, and remove its folder."""
        try:
            if self._process is not None:
                cardmodel.stop(self._process)
        finally:
            self._folder.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
