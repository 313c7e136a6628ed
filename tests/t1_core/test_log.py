"""Log records as an operator or a collector sees them, and the guard that makes them fail tests."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvd import log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _root_logger():
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def json_lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_has_one_line_a_record_with_its_fields():
    out = io.StringIO()
    log.setup("info", "json", stream=out)
    log.get("kvd.x").info("promoted", path=Path("/a"), pages=3, ok=True, tiers=("ddr", "nvme"), more={"n": 1.5})
    (record,) = json_lines(out)
    assert record.pop("timestamp").endswith("Z")
    assert record == {
        "event": "promoted",
        "level": "info",
        "logger": "kvd.x",
        "path": "/a",
        "pages": 3,
        "ok": True,
        "tiers": ["ddr", "nvme"],
        "more": {"n": 1.5},
    }


def test_libraries_go_through_the_same_renderer(claim_log):
    claim_log("bound to")
    out = io.StringIO()
    log.setup("info", "json", stream=out)
    logging.getLogger("hypercorn.error").warning("bound to %s", "a\nb")
    (record,) = json_lines(out)
    assert (record["event"], record["level"], record["logger"]) == ("bound to a\\nb", "warning", "hypercorn.error")


def test_records_below_the_level_are_dropped(claim_log):
    claim_log("kept")
    out = io.StringIO()
    log.setup("warning", "json", stream=out)
    log.get("kvd.x").info("dropped")
    log.get("kvd.x").warning("kept")
    assert [record["event"] for record in json_lines(out)] == ["kept"]


@pytest.mark.parametrize("kind", ["text", "json"])
@pytest.mark.parametrize(
    "name", [b"/a\xff\n\x1b[2J", os.fsdecode(b"/a\xff\n\x1b[2J"), Path(os.fsdecode(b"/a\xff\n\x1b[2J"))]
)
def test_a_name_can_neither_forge_a_line_nor_steer_a_terminal(kind, name):
    out = io.StringIO()
    log.setup("info", kind, stream=out)
    log.get("kvd.x").info("opened", path=name)
    text = out.getvalue()
    assert text.count("\n") == 1
    assert "\x1b" not in text
    shown = json_lines(out)[0]["path"] if kind == "json" else text
    assert r"/a\xff\n\x1b[2J" in shown.replace(r"\\", "\\")


def test_deep_and_odd_values_are_bounded():
    deep: list[object] = []
    deep.append(deep)
    assert "[...]" in str(log.printable(deep))
    assert log.printable({b"k": object}) == {"b'k'": "<class 'object'>"}


def test_an_exception_is_one_structured_field_without_local_variables(claim_log):
    claim_log("failed")
    out = io.StringIO()
    log.setup("info", "json", stream=out)

    def fail() -> None:
        password = "hunter2"
        raise ValueError(f"wrong length {len(password)}")

    try:
        fail()
    except ValueError:
        log.get("kvd.x").exception("failed")
    (record,) = json_lines(out)
    assert record["exception"][0]["exc_type"] == "ValueError"
    assert record["exception"][0]["exc_value"] == "wrong length 7"
    assert record["exception"][0]["frames"][-1]["name"] == "fail"
    assert "hunter2" not in json.dumps(record["exception"])


@pytest.mark.parametrize(("stream", "coloured"), [(Terminal(), True), (io.StringIO(), False)])
def test_text_has_colours_on_a_terminal_only(stream, coloured):
    log.setup("info", "auto", stream=stream)
    log.get("kvd.x").info("hello", n=1)
    assert ("\x1b[" in stream.getvalue()) == coloured
    assert "hello" in stream.getvalue()


@pytest.mark.parametrize("journal", [True, False])
def test_auto_is_json_only_where_the_stream_is_the_journal(monkeypatch, tmp_path, journal):
    with (tmp_path / "out").open("w+") as out:
        status = os.fstat(out.fileno())
        inode = status.st_ino if journal else status.st_ino + 1
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{inode}")
        log.setup("info", "auto", stream=out)
        log.get("kvd.x").info("hello")
        out.seek(0)
        assert out.read().startswith("{") == journal


def test_setting_up_twice_logs_once():
    out = io.StringIO()
    log.setup("info", "json", stream=out)
    log.setup("info", "json", stream=out)
    log.get("kvd.x").info("hello")
    assert len(json_lines(out)) == 1


GUARDED = """
import logging
from kvd import log

def test_structlog_fails(): log.get("a").warning("disk is slow")
def test_stdlib_fails(): logging.getLogger("b").error("disk is %s", "slow")
def test_claimed(claim_log):
    claim_log("disk is slow")
    log.get("a").warning("disk is slow")
    logging.getLogger("b").error("disk is %s", "slow")
def test_field_claimed(claim_log):
    claim_log("path=/x")
    log.get("a").warning("disk is slow", path="/x")
def test_another_claim_fails(claim_log):
    claim_log("disk is fast")
    log.get("a").warning("disk is slow")
def test_info_is_fine(): log.get("a").info("disk is fine")
"""


def test_an_unclaimed_warning_fails_its_test(scratch):
    shutil.copy(Path(__file__).parents[1] / "conftest.py", scratch)
    (scratch / "test_guarded.py").write_text(GUARDED)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(scratch),
        "-rE",
        str(scratch),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=scratch, timeout=60)
    assert "6 passed, 3 errors" in done.stdout
    for name in ("structlog_fails", "stdlib_fails", "another_claim_fails"):
        assert f"ERROR test_guarded.py::test_{name}" in done.stdout
