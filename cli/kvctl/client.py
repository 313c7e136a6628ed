"""The daemon as ``kvctl`` sees it: HTTP on a UNIX socket."""

from __future__ import annotations

import errno
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_from_bytes

import httpx

from kvctl.exits import CtlError, DaemonError, Exit, NoDaemonError
from kvctl.names import to_wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

API_VERSION: Final = 1

CONNECT_S: Final = 5.0
SILENCE_S: Final = 70.0
"""Longer than the daemon takes for any short answer, or is silent in a long one."""


class Client:
    """A connection to the daemon.

    Parameters
    ----------
    socket
        Where the daemon listens.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = self._socket = socket
        self.absent = False
        """Nobody listened when it was asked."""
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(socket)),
            base_url="http://kvd",
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S),
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def mount(self) -> str:
        """Return the daemon's mount point."""
        version = self.get("version")
        with self._explained():
            api, mount = int(version["api"]), str(version["mount"])
        if api != API_VERSION:
            raise CtlError(
                f"this kvctl speaks version {API_VERSION} of the API and the daemon version {api}:"
                " use the kvctl that came with the daemon",
                Exit.FAILED,
                "EPROTO",
            )
        return mount

    def get(self, what: str, path: bytes | None = None) -> dict[str, Any]:
        """Ask for a document.

        Raises
        ------
        CtlError
            If there is no daemon, or it says no.
        """
        query = "" if path is None else f"?path={quote_from_bytes(path)}"
        with self._explained():
            return self._document(self._http.get(f"/v1/{what}{query}"))

    def metrics(self) -> str:
        """Ask for the metrics, as a scraper gets them."""
        with self._explained():
            answer = self._http.get("/metrics")
            if not (answer.is_success and answer.headers["content-type"].startswith("text/plain")):
                self._document(answer)
                raise ValueError(answer.status_code)
            return answer.text

    def post(self, what: str, body: dict[str, object] | None = None) -> dict[str, Any]:
        """Tell the daemon to do something; return what it says."""
        with self._explained():
            content = None if body is None else _encode(body)
            return self._document(self._http.post(f"/v1/{what}", content=content))

    def pin(self, path: bytes, *, pinned: bool) -> int:
        """Pin or unpin what is at or below a path; return how many objects changed."""
        with self._explained():
            answer = self._http.post(f"/v1/{'pin' if pinned else 'unpin'}", content=_encode({"path": to_wire(path)}))
            return int(self._document(answer)["changed"])

    def operate(self, what: str, paths: Sequence[bytes]) -> Iterator[dict[str, Any]]:
        """Begin an operation and yield its steps; closing the iterator cancels it.

        Raises
        ------
        CtlError
            If there is no daemon, it says no, or it goes away in the middle.
        """
        return self.stream(what, {"paths": [to_wire(path) for path in paths]})

    def stream(self, what: str, body: dict[str, object]) -> Iterator[dict[str, Any]]:
        """Begin what answers line by line, and yield the lines; see `operate`."""
        with self._explained(), self._http.stream("POST", f"/v1/{what}", content=_encode(body)) as answer:
            if not answer.is_success:
                answer.read()
                self._document(answer)
            for line in answer.iter_lines():
                if line:
                    yield _checked(json.loads(line))

    def _document(self, answer: httpx.Response) -> dict[str, Any]:
        document = json.loads(answer.content)
        if not isinstance(document, dict) or not (answer.is_success or "error" in document):
            raise ValueError(answer.status_code)
        return _checked(document)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the ways in which a daemon can be absent into sentences."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._unreachable(error) from error
        except httpx.TimeoutException as error:
            raise NoDaemonError(f"the daemon at {self._socket} says nothing for {SILENCE_S:g} s: it hangs") from error
        except httpx.TransportError as error:
            raise NoDaemonError(
                f"the daemon at {self._socket} went away in the middle; what is done stays done"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise NoDaemonError(f"what answers at {self._socket} is not kvd") from error

    def _unreachable(self, error: Exception) -> NoDaemonError:
        start = "start it: systemctl start kvd, or kvd --config FILE"
        match _errno(error):
            case errno.ENOENT | errno.ENOTDIR:
                self.absent = True
                return NoDaemonError(f"no daemon: there is no socket {self._socket}; {start}")
            case errno.ECONNREFUSED:
                self.absent = True
                return NoDaemonError(f"no daemon: nobody listens on {self._socket}; {start}")
            case errno.EACCES | errno.EPERM:
                return NoDaemonError(
                    f"permission denied on {self._socket}: be root or in the group kvd"
                    " (usermod -aG kvd USER, then log in again)"
                )
            case _:
                return NoDaemonError(f"can't reach a daemon at {self._socket}: {error}; {start}")


def _errno(error: BaseException | None) -> int | None:
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        error = error.__cause__ or error.__context__
    return None


def _encode(body: dict[str, object]) -> bytes:
    return json.dumps(body).encode("ascii")


def _checked(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document that is not an error; a step's own error is a string or null."""
    if isinstance(failure := document.get("error"), dict):
        raise DaemonError(failure["message"], failure["code"])
    return document
