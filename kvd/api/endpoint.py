"""The UNIX socket that the API listens on: bound by us, so that its mode and its owner are right from the first moment."""

from __future__ import annotations

import grp
import os
import socket
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog

from kvd.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOCKET_MODE: Final = 0o660
SOCKET_PATH_BYTES_MAX: Final = 107
"""``sun_path`` less its NUL."""

BACKLOG: Final = 64

_log = structlog.get_logger("kvd.api")


@contextmanager
def listening(path: Path, group: str, kind: int = socket.SOCK_STREAM) -> Iterator[socket.socket]:
    """Bind and listen; on leaving close the socket and remove its file, if the file is still ours.

    Parameters
    ----------
    path
        Where; its directory is made if only that is missing. The socket of a dead daemon gives way.
    group
        Who may connect besides the owner; passed over where there is no such group or we may not give to it.
    kind
        SOCK_STREAM or SOCK_SEQPACKET.

    Raises
    ------
    ConfigError
        If the path is too long or something that is not a socket lies there.
    UnavailableError
        If a daemon listens there, or the place can't be written to.
    """
    if (length := len(os.fsencode(path))) > SOCKET_PATH_BYTES_MAX:
        raise ConfigError(
            f"[daemon] socket: {path} is {length} bytes long; the kernel allows {SOCKET_PATH_BYTES_MAX}: choose a shorter one"
        )
    _make_way(path, kind)
    with socket.socket(socket.AF_UNIX, kind) as sock:
        try:
            path.parent.mkdir(exist_ok=True)
            # bind(2) takes the file's mode from the socket's: nobody else can connect before the chmod.
            os.fchmod(sock.fileno(), 0o600)
            sock.bind(os.fspath(path))
        except OSError as error:
            raise UnavailableError(f"can't make the control socket {path}: {error.strerror}") from error
        inode = _identity(path)
        try:
            _give_to(path, group)
            path.chmod(SOCKET_MODE)
            sock.listen(BACKLOG)
            sock.setblocking(False)
            yield sock
        finally:
            if _identity(path) == inode:
                path.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _make_way(path: Path, kind: int) -> None:
    """Remove the socket of a dead daemon."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UnavailableError(f"can't look at the control socket {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"[daemon] socket: {path} is there and is not a socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            pass
        except BlockingIOError:
            raise UnavailableError(f"another daemon listens on {path} and its queue is full") from None
        except OSError as error:
            raise UnavailableError(f"can't tell whether a daemon listens on {path}: {error.strerror}") from error
        else:
            raise UnavailableError(f"another daemon listens on {path}; stop it or choose another [daemon] socket")
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UnavailableError(f"can't remove the stale control socket {path}: {error.strerror}") from error


def _give_to(path: Path, group: str) -> None:
    try:
        os.chown(path, -1, grp.getgrnam(group).gr_gid)
    except KeyError:
        _log.info("no such group: the control socket is the daemon's user's alone", group=group, socket=str(path))
    except OSError as error:
        _log.info("the control socket stays with our own group", group=group, socket=str(path), reason=error.strerror)
