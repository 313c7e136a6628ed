"""``kvctl replay``: its traces, its counts, and the reference rows where the public traces are at hand."""

import json
import random
from pathlib import Path

import pytest

from kvctl.replays import belady, plot, report, run, traces
from kvctl.replays.replayer import Replay, Speeds, Tiers, hints_of
from kvd.policy.ageing import Hint
from kvd.policy.policies import POLICIES

BESIDE = [folder / "shared" / "traces" for folder in Path(__file__).parents]
SHARED = next((folder for folder in BESIDE if folder.is_dir()), BESIDE[3])
"""Beside the clone, or beside the folder that a worktree is in."""
CONVERSATION = SHARED / "mooncake_conversation.jsonl"
SYNTHETIC = SHARED / "mooncake_synthetic.jsonl"
SPEEDS = Speeds(token_bytes=1024, ddr_bytes_s=1e9, nvme_bytes_s=1e8, prefill_tokens_s=1000.0)
needs_traces = pytest.mark.skipif(not CONVERSATION.exists(), reason="the public traces are not beside this clone")


def line(now_ms, ids, output=100, tokens=None):
    return json.dumps(
        {"timestamp": now_ms, "input_length": tokens or 512 * len(ids), "output_length": output, "hash_ids": ids}
    )


def own_trace(path, requests=1500):
    """Write conversations of which half go on, each a minute after its last request."""
    rng = random.Random(5)
    open_ones = []
    lines = []
    fresh = iter(range(1, 10**9))
    for number in range(requests):
        now_ms = number * 1000
        ids = open_ones.pop(0)[1] if open_ones and open_ones[0][0] <= now_ms else [0]
        ids = [*ids, *(next(fresh) for _ in range(rng.randint(1, 8)))]
        goes_on = rng.random() < 0.5
        lines.append(line(now_ms, ids, output=800 if goes_on else 20))
        if goes_on:
            open_ones.append((now_ms + 60_000, ids))
    path.write_text("\n".join(lines) + "\n")
    return path


def options(policies, blocks, hints=None, nvme=None):
    return run.Options(
        policies=policies,
        hints=hints,
        ddr_blocks=blocks,
        tier_bytes={} if nvme is None else {"nvme": nvme},
        token_bytes=1024,
        ddr_bytes_s=1e9,
        nvme_bytes_s=1e8,
        prefill_tokens_s=1000.0,
    )


def rates(path, policies, blocks, hints=None):
    return {name: counts.hit_rate for name, counts in run.run(path, options(policies, blocks, hints)).counts.items()}


def test_counts_of_a_trace_done_by_hand(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join([line(0, [1, 2]), line(1, [1, 2, 3]), line(2, [9]), line(3, [1, 4, 3])]) + "\n\n")
    found = run.run(path, options(("lru",), 10))
    counts = found.counts["lru"]
    assert (counts.requests, counts.blocks, counts.ddr_hits) == (4, 9, 3), "after a miss nothing hits"
    told = report.numbers(counts, found.block_bytes)
    assert told["ddr_read_bytes"] == 3 * 512 * 1024
    assert found.unique_blocks == 5
    assert counts.ttft_s[0] == pytest.approx(1024 / 1000.0)
    assert counts.ttft_s[1] == pytest.approx(2 * 512 * 1024 / 1e9 + 512 / 1000.0)


def test_a_second_tier_takes_what_leaves_the_first(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(line(at, [at % 3]) for at in range(30)))
    found = run.run(path, options(("lru", "default"), 1, nvme=10 * 512 * 1024))
    for counts in found.counts.values():
        assert counts.ddr_hits == 0
        assert counts.nvme_hits == 27
        assert counts.nvme_written == 3, "what comes back leaves a clean copy"


def test_the_default_is_better_than_the_classics_on_an_own_trace_and_belady_bounds_all(tmp_path):
    found = rates(own_trace(tmp_path / "own.jsonl"), (*POLICIES, "belady"), 150)
    assert found["default"] > 1.02 * max(found[name] for name in POLICIES if name != "default")
    assert max(found.values()) == found["belady"]
    hinted = rates(tmp_path / "own.jsonl", ("default", "lru"), 150, hints=1.0)
    assert hinted["default"] >= found["default"] - 0.002
    assert hinted["lru"] == found["lru"], "classics know no hints"


def test_hints_are_right_as_often_as_asked(tmp_path):
    requests = list(traces.read(own_trace(tmp_path / "own.jsonl")))
    truth = hints_of(requests, 1.0)
    said = hints_of(requests, 0.85)
    assert {Hint.KEEP, Hint.RELEASE} == set(truth)
    assert sum(map(Hint.__eq__, truth, said)) / len(truth) == pytest.approx(0.85, abs=0.03)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "line 2: no JSON"),
        ("[]", "line 2: no JSON object"),
        ("{}", "line 2: timestamp is no number"),
        (line(-1, [1]), "line 2: timestamp is no number"),
        (line(5, [1]).replace('"output_length": 100', '"output_length": -4'), "line 2: output_length is no count"),
        (line(5, [-1]), "line 2: -1 is no block id"),
        (line(5, [2**70]), "is no block id from 0"),
        (line(5, []).replace("[]", "7"), "line 2: hash_ids is no list"),
        ("[" * 100_000, "line 2: no JSON"),
        ('{"timestamp": NaN}', "line 2: timestamp is no number"),
        ("\x00\xff", "line 2: no JSON"),
    ],
)
def test_a_bad_trace_is_one_sentence_with_the_line(tmp_path, text, told):
    path = tmp_path / "bad.jsonl"
    path.write_text(line(0, [1]) + "\n" + text + "\n")
    with pytest.raises(traces.TraceError) as caught:
        list(traces.read(path))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_time_does_not_go_back_and_lines_end(tmp_path, monkeypatch):
    path = tmp_path / "bad.jsonl"
    path.write_text(line(10, [1]) + "\n" + line(9, [1]) + "\n")
    with pytest.raises(traces.TraceError, match="line 2: timestamp 9 is before"):
        list(traces.read(path))
    monkeypatch.setattr(traces, "LINE_BYTES_MAX", 10)
    with pytest.raises(traces.TraceError, match="line 1: longer"):
        list(traces.read(path))
    with pytest.raises(traces.TraceError, match="No such file"):
        list(traces.read(tmp_path / "none.jsonl"))
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(traces.TraceError, match="no requests"):
        run.run(tmp_path / "empty.jsonl", options(("lru",), 1))


def test_sessions_of_a_folder_are_merged_and_share_nothing(tmp_path):
    for name, start in (("a", 0.0), ("b", 0.5)):
        inner = {"t": start + 1, "in": 64, "out": 5, "hash_ids": [7]}
        requests = [{"t": start, "in": 100, "out": 5, "hash_ids": [7, 8]}, {"requests": [inner]}]
        (tmp_path / f"{name}.json").write_text(json.dumps({"block_size": 64, "requests": requests}))
    found = list(traces.read(tmp_path))
    assert [each.now_s for each in found] == [0.0, 0.5, 1.0, 1.5]
    assert [each.partial for each in found] == [True, True, False, False]
    assert found[0].blocks[0] != found[1].blocks[0]
    assert found[0].blocks[0] == found[2].blocks[0]


def test_belady_lets_what_is_never_used_again_go_first():
    requests = [
        traces.Request(now_s=at, blocks=ids, input_tokens=512 * len(ids), output_tokens=1, block_tokens=512)
        for at, ids in enumerate([(1, 2), (3,), (1, 2)])
    ]
    one = Replay(belady.Belady(requests), Tiers(ddr_blocks=2), SPEEDS)
    for request in requests:
        one.step(request)
    assert one.counts.ddr_hits == 2


def test_a_picture_is_an_svg_and_the_same_twice(tmp_path):
    found = run.run(own_trace(tmp_path / "own.jsonl", 100), options(("default", "lru", "belady"), 50, nvme=2**25))
    plot.draw(found, tmp_path / "a.svg")
    plot.draw(found, tmp_path / "b.svg")
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert "belady" in text


REFERENCE = {
    "lru": {1000: 0.0445, 5860: 0.1355, 10_000: 0.2112, 30_000: 0.3257, 50_000: 0.3546, 100_000: 0.3637},
    "lfu": {1000: 0.0481, 5860: 0.0966, 10_000: 0.1318, 30_000: 0.2759, 50_000: 0.3438, 100_000: 0.3631},
    "fifo": {1000: 0.0434, 5860: 0.1248, 10_000: 0.1815, 30_000: 0.2944, 50_000: 0.3335, 100_000: 0.3563},
    "belady": {1000: 0.1907, 5860: 0.3532, 10_000: 0.3664, 30_000: 0.3664},
}
DEFAULT_AT_LEAST = {1000: 0.082, 5860: 0.195, 10_000: 0.241, 30_000: 0.338, 50_000: 0.360, 100_000: 0.3645}


@needs_traces
@pytest.mark.parametrize("policy", REFERENCE)
def test_reference_rows(policy):
    for blocks, rate in REFERENCE[policy].items():
        assert rates(CONVERSATION, (policy,), blocks)[policy] == pytest.approx(rate, abs=0.002), blocks


@needs_traces
def test_reference_rows_of_the_synthetic_trace():
    for blocks, rate in {1000: 0.0825, 5860: 0.3094, 10_000: 0.4235, 30_000: 0.6242}.items():
        assert rates(SYNTHETIC, ("lru",), blocks)["lru"] == pytest.approx(rate, abs=0.002), blocks
    assert rates(SYNTHETIC, ("belady",), 10_000)["belady"] == pytest.approx(0.6180, abs=0.002)


@needs_traces
@pytest.mark.parametrize("blocks", DEFAULT_AT_LEAST)
def test_the_default_reaches_its_numbers_and_hints_at_random_change_nothing(blocks):
    found = rates(CONVERSATION, ("default",), blocks)["default"]
    assert found >= DEFAULT_AT_LEAST[blocks]
    assert rates(CONVERSATION, ("default",), blocks, hints=0.5)["default"] >= found


HINTS_85 = 0.292
"""What hints that are right in 85 % of the cases are worth at 10,000 blocks; .30 was aimed at and is missed (docs/policy.md)."""


@needs_traces
def test_hints_that_are_mostly_right_are_followed():
    assert rates(CONVERSATION, ("default",), 10_000, hints=0.85)["default"] >= HINTS_85


@needs_traces
def test_the_default_on_the_synthetic_trace():
    assert rates(SYNTHETIC, ("default",), 10_000)["default"] >= 0.465


@needs_traces
@pytest.mark.parametrize("blocks", [1940, 3881, 9703, 19_406])
def test_the_default_on_agent_sessions_is_no_worse_than_lru(blocks):
    found = rates(SHARED / "agent_sessions", ("default", "lru-tail"), blocks)
    assert found["default"] >= found["lru-tail"] - 0.002
