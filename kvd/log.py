"""Logging: structlog for kvd's own, the same renderer for what libraries say through `logging`; to stderr.

Each record is an event (a fixed phrase) and fields. Fields never hold secrets, names of files are shown as they are
with what is not printable escaped: a name in the mount must not be able to forge a line or steer a terminal.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import structlog
from structlog.processors import ExceptionRenderer
from structlog.tracebacks import ExceptionDictTransformer

if TYPE_CHECKING:
    from typing import TextIO

    from structlog.typing import EventDict, Processor, WrappedLogger

_DEPTH_MAX = 4


def setup(level: str = "info", format: str = "auto", *, stream: TextIO | None = None) -> None:  # noqa: A002
    """Send every record of `level` and above to `stream` (stderr).

    Parameters
    ----------
    level
        ``debug``, ``info``, ``warning`` or ``error``.
    format
        ``text``, ``json``, or ``auto``: JSON lines where stderr is systemd's journal, else text, with colours on a
        terminal.
    stream
        Where to; for tests.
    """
    out = sys.stderr if stream is None else stream
    as_json = format == "json" or (format == "auto" and _is_journal(out))
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_foreign_chain(),
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderer(out, as_json=as_json)],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in [old for old in root.handlers if getattr(old, "kvd_handler", False)]:
        root.removeHandler(old)
    handler.kvd_handler = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.setLevel(level.upper())
    route()


def route() -> None:
    """Make structlog speak through `logging`; `setup` does it, tests that only listen do it alone."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            *_foreign_chain(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def get(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module: ``log = get(__name__)``."""
    return structlog.stdlib.get_logger(name)


def printable(value: object, depth: int = _DEPTH_MAX) -> Any:
    """Return `value` with bytes and paths as text, and what is not printable or not UTF-8 escaped."""
    match value:
        case bool() | int() | float() | None:
            return value
        case str() | bytes() | os.PathLike():
            return _escape(os.fsdecode(value))
        case dict() if depth > 0:
            return {_escape(str(key)): printable(item, depth - 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset() if depth > 0:
            return [printable(item, depth - 1) for item in value]
        case _:
            return _escape(str(value))


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape_char(char) for char in text)


def _escape_char(char: str) -> str:
    # A byte that is not UTF-8 arrives as a lone surrogate (PEP 383) and is shown as the byte that it is.
    if "\udc80" <= char <= "\udcff":
        return f"\\x{os.fsencode(char)[0]:02x}"
    return char.encode("unicode_escape").decode()


def _escape_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {
        key: value if key == "exc_info" or key.startswith("_") else printable(value) for key, value in event.items()
    }


def _foreign_chain() -> list[Processor]:
    return [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _renderer(out: TextIO, *, as_json: bool) -> list[Processor]:
    if as_json:
        # Local variables are left out: they may hold what nobody meant to log.
        exceptions = ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
        return [_escape_fields, exceptions, structlog.processors.JSONRenderer()]
    console = structlog.dev.ConsoleRenderer(
        colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback, sort_keys=False
    )
    return [_escape_fields, console]


def _is_journal(out: TextIO) -> bool:
    """Tell whether `out` is the stream that systemd connected to its journal (systemd.exec(5), JOURNAL_STREAM)."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(out.fileno())
    except (OSError, ValueError):
        return False
    return (str(status.st_dev), str(status.st_ino)) == (device, inode)
