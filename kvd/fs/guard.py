"""From what handlers raise to the errno of one request.

pyfuse3 ends its main loop when a handler raises anything but `FUSEError`; here every handler is wrapped, so that a bug
costs one request an EIO and a line in the log, and the mount lives on.
"""

from __future__ import annotations

import errno
import functools
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pyfuse3
import structlog
import trio

from kvd.errors import KvdError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

log = structlog.get_logger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def errno_of(error: BaseException) -> int | None:
    """Return the errno that an exception stands for, or None for a bug."""
    if isinstance(error, BaseExceptionGroup):
        codes = {errno_of(one) for one in error.exceptions}
        return codes.pop() if len(codes) == 1 else None
    if isinstance(error, pyfuse3.FUSEError):
        return int(error.errno)
    if isinstance(error, KvdError | OSError):
        return error.errno or errno.EIO
    return None


def guarded(handler: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Wrap a handler method of pyfuse3's Operations."""

    @functools.wraps(handler)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await handler(*args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except trio.Cancelled:
            raise
        except Exception as error:
            code = errno_of(error)
            if code is None:
                code = errno.EIO
                log.exception("request failed", request=handler.__name__, arguments=_show(args[1:]))
            raise pyfuse3.FUSEError(code) from error

    return wrapper


def _show(arguments: tuple[Any, ...]) -> str:
    return ", ".join(repr(a) for a in arguments if isinstance(a, int | bytes | bool))[:500]
