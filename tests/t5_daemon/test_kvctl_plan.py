"""``kvctl plan`` as a program: what it prints and refuses, on a trace of its own and on a public one."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from support.kvctl_runs import WAIT_S, document, kvctl, on_a_terminal, start

NOWHERE = Path("/nope")
MODEL = "layers=32,kv_heads=8,head_dim=128,dtype=fp16"
PRICE = "ddr=3.0/GiB-month,nvme=0.1/GiB-month,gpu=2.5/h"
OPTIONS = {"--model": MODEL, "--gpu-prefill": "8000@4096,5000@32768", "--price": PRICE}
BESIDE = [folder / "shared" / "traces" / "mooncake_conversation.jsonl" for folder in Path(__file__).parents]
CONVERSATION = next((path for path in BESIDE if path.exists()), BESIDE[0])
SECONDS = 600


def arguments(trace: Path, **changed: str | None) -> list[str]:
    """Return a command line with some options changed, or left out."""
    options = OPTIONS | {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    words = (word for name, value in options.items() if value is not None for word in (name, value))
    return ["plan", str(trace), *words]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Write ten conversations that take turns for ten minutes, each a block longer at each turn."""
    path = tmp_path / "trace.jsonl"
    lines = []
    for second in range(SECONDS):
        turn, who = divmod(second, 10)
        ids = [who * 1000 + number for number in range(1 + turn % 20)]
        one = {"timestamp": second * 1000, "input_length": 512 * len(ids), "output_length": 9, "hash_ids": ids}
        lines.append(json.dumps(one))
    path.write_text("\n".join(lines))
    return path


def test_words(trace: Path, tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    done = kvctl(NOWHERE, *arguments(trace), "--plot", str(picture))
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.splitlines()
    assert "600 requests in 9m 59s" in head
    assert "KV of 128 KiB a token" in head
    assert [line for line in lines if line.startswith("Buy ")]
    assert "The whole trace fits: more DDR would save nothing." in lines
    assert "Restoring from DDR is faster than computing from 1 token on." in lines
    for case in ("short contexts: no;", "independent requests: no;", "one small host: no;"):
        assert any(line.startswith(f"- {case}") for line in lines), case
    assert picture.read_text().count("<svg") == 1


def test_json_is_one_document_that_adds_up(trace: Path) -> None:
    done = kvctl(NOWHERE, "--json", *arguments(trace))
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    found = document(done)
    assert found["model"]["token_bytes"] == 128 << 10
    assert found["break_even_tokens"]["ddr"] == 1
    assert found["load"]["requests"] == SECONDS
    best = found["best"]
    assert best in found["sizes"]
    assert best["left_month"] == max(each["left_month"] for each in found["sizes"] if each["nvme_busy"] <= 1)
    gpu_month = best["saved_gpu_s_h"] / 3600 * 730 * 2.5
    assert best["saved_month"] == pytest.approx(gpu_month, rel=1e-3)
    price = 3.0 * best["ddr_bytes"] / 2**30 + 0.1 * best["nvme_bytes"] / 2**30
    assert best["price_month"] == pytest.approx(price, abs=1e-3)
    assert found["belady"]["hit_tokens"] >= best["hit_tokens"]
    assert found["load"]["unlimited_hit_tokens"] >= found["belady"]["hit_tokens"]
    assert [each["case"] for each in found["cases"]] == ["short contexts", "independent requests", "one small host"]


@pytest.mark.parametrize(
    ("changed", "status", "told"),
    [
        ({"model": "layers=0,kv_heads=8,head_dim=128,dtype=fp16"}, 2, "--model layers: a whole number from 1"),
        ({"model": "llama"}, 4, "--model llama: No such file"),
        ({"gpu_prefill": "0"}, 2, "--gpu-prefill 0: tokens a second"),
        ({"price": "ddr=0/GiB-month,gpu=1/h"}, 2, "--price ddr=0/GiB-month: more than 0"),
        ({"price": "ddr=-3/GiB-month,gpu=1/h"}, 2, "--price ddr=-3/GiB-month: ddr=PRICE"),
        ({"price": "ddr=1/GiB-month,gpu=1/h", "nvme_sizes": "1TiB"}, 2, "--nvme-sizes: --price has no nvme="),
        ({"ddr_rate": "0GB"}, 2, "--ddr-rate 0GB: more than 0"),
        ({"nvme_first": "soon"}, 2, "--nvme-first soon:"),
        ({"ddr_sizes": "4GiB..1GiB"}, 2, "--ddr-sizes 4GiB..1GiB: from a size to one"),
        ({"plot": "plan.png"}, 2, "the picture is an SVG file"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    trace: Path, changed: dict[str, str | None], status: int, told: str
) -> None:
    done = kvctl(NOWHERE, *arguments(trace, **changed))
    assert (done.returncode, done.stdout) == (status, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "No such file"), ("", "no requests"), ("{", "line 1: no JSON"), ("{}", "timestamp is no number")],
)
def test_a_bad_trace_is_damage(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "bad.jsonl"
    if text is not None:
        path.write_text(text)
    done = kvctl(NOWHERE, *arguments(path))
    assert (done.returncode, done.stdout) == (7, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_measuring_and_giving_rates_are_not_both(trace: Path) -> None:
    done = kvctl(NOWHERE, *arguments(trace, ddr_rate="9GB"), "--measure")
    assert done.returncode == 2
    assert "give --measure, or --ddr-rate" in done.stderr


def test_ctrl_c_is_quiet(tmp_path: Path) -> None:
    path = tmp_path / "slow.jsonl"
    os.mkfifo(path)
    # The open waits until the trace is being read, and the reader then waits for its first line.
    with start(NOWHERE, *arguments(path)) as process, path.open("w"):
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (130, "kvctl: interrupted\n")


def test_progress_on_a_terminal(trace: Path) -> None:
    status, shown = on_a_terminal(NOWHERE, *arguments(trace))
    assert status == 0
    assert "size 1 of at most " in shown


@pytest.mark.skipif(not CONVERSATION.exists(), reason="the public traces are not beside this clone")
def test_the_conversation_trace() -> None:
    # DDR for a tenth of the load's KV, so that it does not all fit; two sizes, for a minute is too long for a test.
    done = kvctl(
        NOWHERE,
        "--json",
        *arguments(CONVERSATION, price="ddr=3.0/GiB-month,gpu=2.5/h", ddr_sizes="512GiB..1TiB"),
    )
    found = document(done)
    assert found["load"]["input_tokens"] == 144_793_823
    hits = [each["hit_tokens"] / found["load"]["input_tokens"] for each in found["sizes"]]
    assert hits == sorted(hits)
    assert 0.2 < hits[0] < hits[1] < found["load"]["unlimited_hit_tokens"] / found["load"]["input_tokens"] < 0.38
    assert found["best"]["ddr_bytes"] == 512 << 30
    assert found["load"]["reuse_bytes"]["p50"] == pytest.approx(522 * 2**30, rel=0.01)
    assert [each["holds"] for each in found["cases"]] == [False, False, True], "512 GiB are less than 522"
