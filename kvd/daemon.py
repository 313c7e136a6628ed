"""The daemon's bring-up and its way down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvd.errors import KvdError

if TYPE_CHECKING:
    from kvd.config import Config


def run(config: Config) -> int:
    """Serve the mount until told to stop; return the exit status.

    Raises
    ------
    KvdError
        If the daemon can't start.
    """
    raise KvdError(f"this build has no daemon that could mount {config.daemon.mount}")
