"""What becomes of whatever a handler raises."""

from __future__ import annotations

import errno
import os
import sqlite3

import pyfuse3
import pytest
import trio

from kvd.errors import BusyError, DamagedError, KvdError, NoSpaceError
from kvd.fs.guard import errno_of, guarded


class Handlers:
    @guarded
    async def handle(self, what: BaseException | None) -> str:
        """Say so."""
        await trio.lowlevel.checkpoint()
        if what is not None:
            raise what
        return "answer"


async def errno_from(what: BaseException) -> int:
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await Handlers().handle(what)
    assert caught.value.__cause__ is (None if isinstance(what, pyfuse3.FUSEError) else what)
    return int(caught.value.errno)


async def test_an_answer_passes():
    assert await Handlers().handle(None) == "answer"
    assert Handlers.handle.__name__ == "handle"
    assert Handlers.handle.__doc__ == "Say so."


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (pyfuse3.FUSEError(errno.EXDEV), errno.EXDEV),
        (OSError(errno.ENOSPC, "full"), errno.ENOSPC),
        (FileNotFoundError(errno.ENOENT, "none"), errno.ENOENT),
        (OSError("without a number"), errno.EIO),
        (NoSpaceError("no room"), NoSpaceError("").errno),
        (DamagedError("quarantined"), DamagedError("").errno),
        (BusyError("busy"), BusyError("").errno),
        (ExceptionGroup("one kind", [OSError(errno.EAGAIN, "a"), OSError(errno.EAGAIN, "b")]), errno.EAGAIN),
        (ExceptionGroup("deep", [ExceptionGroup("down", [OSError(errno.EROFS, "a")])]), errno.EROFS),
    ],
)
async def test_what_stands_for_an_errno_becomes_it_and_is_not_logged(what, code):
    assert await errno_from(what) == code


@pytest.mark.parametrize(
    "bug",
    [
        ZeroDivisionError("division by zero"),
        KeyError("key"),
        AssertionError(),
        sqlite3.IntegrityError("constraint"),
        ExceptionGroup("mixed", [OSError(errno.EAGAIN, "a"), OSError(errno.EIO, "b")]),
        ExceptionGroup("half", [OSError(errno.EAGAIN, "a"), ZeroDivisionError()]),
    ],
)
async def test_a_bug_is_eio_and_a_traceback_in_the_log(bug, claim_log, log_guard):
    claim_log("request failed")
    assert await errno_from(bug) == errno.EIO
    (record,) = log_guard.records
    assert record.msg["request"] == "handle"


async def test_a_bug_does_not_touch_the_next_request(claim_log):
    claim_log("request failed")
    await errno_from(RuntimeError("bug"))
    assert await Handlers().handle(None) == "answer"


async def test_a_full_catalogue_is_enospc(tmp_path):
    db = sqlite3.connect(tmp_path / "db")
    db.execute("CREATE TABLE t(v)")
    db.execute("PRAGMA max_page_count=4")
    with pytest.raises(sqlite3.OperationalError) as caught:
        db.execute("INSERT INTO t VALUES(zeroblob(100000))")
    db.close()
    assert await errno_from(caught.value) == errno.ENOSPC


async def test_cancelling_is_not_an_error():
    with trio.CancelScope() as scope:
        scope.cancel()
        await Handlers().handle(None)
    assert scope.cancelled_caught


async def test_what_ends_the_daemon_passes():
    with pytest.raises(KeyboardInterrupt):
        await Handlers().handle(KeyboardInterrupt())


def test_every_handler_is_guarded():
    from kvd.fs.operations import Operations

    handlers = [name for name in vars(pyfuse3.Operations) if not name.startswith("_")]
    ours = {name: vars(Operations)[name] for name in handlers if name in vars(Operations)}
    assert {"lookup", "open", "create", "rename", "setattr", "forget"} <= ours.keys()
    del ours["forget"]  # has no answer that could be an errno; test_operations.py
    bare = [name for name, function in ours.items() if not hasattr(function, "__wrapped__")]
    assert bare == []


def test_the_errno_of_nothing_known_is_none():
    assert errno_of(ValueError()) is None
    assert errno_of(KvdError("plain")) == (KvdError("plain").errno or errno.EIO)
    assert os.strerror(errno.EIO)
