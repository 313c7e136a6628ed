"""``kvctl plan``: its model against numbers worked out by hand, and what it says of loads that are made for a case."""

import json
import random
from dataclasses import replace

import pytest

from kvctl.exits import CtlError, Exit, UsageError
from kvctl.plan import prefill, prices
from kvctl.plans import load, plot, report, run, shape, sweep, verdict
from kvctl.plans.costs import Costs, Held, Prefill, Tier, break_even_tokens
from kvctl.replays.traces import Request, TraceError

LLAMA = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}
GIB_BYTES = 2**30
MIB_BYTES = 2**20
KIB_TOKEN = 1024
BLOCK_BYTES = 512 * KIB_TOKEN
FAST = Tier(name="ddr", bytes_s=1e12, first_s=1e-6)


def costs(*, ddr=FAST, nvme=None, ddr_gib_month=0.001, nvme_gib_month=0.0001, gpu_hour=1.0):
    return Costs(
        token_bytes=KIB_TOKEN,
        prefill=Prefill([(1, 1000.0)]),
        ddr=ddr,
        nvme=nvme,
        ddr_gib_month=ddr_gib_month,
        nvme_gib_month=nvme_gib_month if nvme else 0.0,
        gpu_hour=gpu_hour,
    )


def requests_of(chains, gap_s=1.0, tokens=None):
    return [
        Request(
            now_s=number * gap_s,
            blocks=tuple(blocks),
            input_tokens=tokens or 512 * len(blocks),
            output_tokens=1,
            block_tokens=512,
        )
        for number, blocks in enumerate(chains)
    ]


def plan_of(tmp_path, chains, of=None, *, gap_s=1.0, tokens=None, ddr_sizes=None, nvme_sizes=None):
    path = tmp_path / "trace.jsonl"
    lines = [
        json.dumps(
            {
                "timestamp": number * gap_s * 1000,
                "input_length": tokens or 512 * len(blocks),
                "output_length": 1,
                "hash_ids": list(blocks),
            }
        )
        for number, blocks in enumerate(chains)
    ]
    path.write_text("\n".join(lines))
    shaped = shape.Shape(layers=1, layer_elements=512, dtype="fp16")
    asked = run.Asked(shape=shaped, costs=of or costs(), ddr_sizes=ddr_sizes, nvme_sizes=nvme_sizes)
    return run.run(path, asked, lambda _: None)


@pytest.mark.parametrize(
    ("config", "token_bytes"),
    [
        (LLAMA, 2 * 32 * 8 * 128 * 2),
        (LLAMA | {"head_dim": 64}, 2 * 32 * 8 * 64 * 2),
        ({**LLAMA, "num_key_value_heads": 32, "torch_dtype": "float8_e4m3fn"}, 2 * 32 * 32 * 128),
        ({"text_config": LLAMA, "torch_dtype": "float32"}, 2 * 32 * 8 * 128 * 2),
        (LLAMA | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 61}, 61 * 576 * 2),
        (LLAMA | {"sliding_window": 4096, "use_sliding_window": False}, 2 * 32 * 8 * 128 * 2),
        (LLAMA | {"layer_types": ["full_attention"] * 32}, 2 * 32 * 8 * 128 * 2),
    ],
)
def test_bytes_of_a_token_from_a_config(tmp_path, config, token_bytes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert shape.parse(str(path)).token_bytes == token_bytes


def test_bytes_of_a_token_from_words():
    assert shape.parse("layers=32, kv_heads=8,head_dim=128,dtype=fp16").token_bytes == 128 << 10
    assert shape.parse("dtype=fp8,layers=1,kv_heads=1,head_dim=1").token_bytes == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("layers=0,kv_heads=8,head_dim=128,dtype=fp16", "--model layers: a whole number from 1"),
        ("layers=-3,kv_heads=8,head_dim=128,dtype=fp16", "--model layers: a whole number"),
        ("layers=32,kv_heads=99999,head_dim=128,dtype=fp16", "--model kv_heads: a whole number"),
        ("layers=32,kv_heads=8,head_dim=128,dtype=fp17", "--model dtype: one of"),
        ("layers=32,kv_heads=8,head_dim=128", "dtype is missing"),
        ("layers=32,layers=8", "each once"),
        ("heads=3", "--model heads=3"),
    ],
)
def test_words_that_are_no_shape(text, told):
    with pytest.raises(UsageError, match=told):
        shape.parse(text)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "num_hidden_layers: a whole number"),
        (LLAMA | {"torch_dtype": None}, "torch_dtype: one of"),
        (LLAMA | {"sliding_window": 4096}, r"do not keep every token \(sliding_window\)"),
        (LLAMA | {"layer_types": ["linear_attention", "full_attention"]}, r"\(linear_attention\)"),
        (LLAMA | {"num_key_value_heads": "8"}, "num_key_value_heads: a whole number"),
    ],
)
def test_configs_that_do_not_say_the_shape(config, told):
    with pytest.raises(UsageError, match=told):
        shape.of_config(config, "config.json")


def test_files_that_are_no_config(tmp_path):
    for text, told in (("{", "no JSON"), ("[]", "no JSON object"), (" " * (shape.CONFIG_BYTES_MAX + 1), "larger than")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CtlError, match=told) as caught:
            shape.parse(str(tmp_path / "config.json"))
        assert caught.value.status is Exit.DAMAGED
    with pytest.raises(CtlError, match="No such file") as caught:
        shape.parse("no-such-model")
    assert caught.value.status is Exit.NOT_FOUND


def test_prefill_by_hand():
    gpu = prefill("1000@1000,500@2000")
    # 1 ms a token to 1,000, 2 ms at 2,000, and a ms more every 1,000 from there on.
    for tokens, seconds in ((0, 0.0), (500, 0.5), (1000, 1.0), (1500, 2.25), (2000, 4.0), (3000, 9.0)):
        assert gpu.seconds(tokens) == pytest.approx(seconds)
    assert prefill("8000").seconds(16000) == pytest.approx(2.0)
    # 200 ms at 100 and a second at 1,000: 111 ms once and 0.89 ms a token.
    short = prefill("500@100,1000@1000")
    assert short.seconds(550) == pytest.approx(0.6)
    assert short.seconds(5000) == pytest.approx(5.0), "no faster than was measured"


@pytest.mark.parametrize(
    "text",
    ["0", "-1", "x", "", "5@0", "5,6", "5@9,6@9", "5@9,6@8", "5@", "1e99", "1000@1000,2000@1100", "nan", "1" * 400],
)
def test_prefills_that_make_no_sense(text):
    with pytest.raises(UsageError, match="--gpu-prefill"):
        prefill(text)


def test_break_even_by_hand():
    gpu = Prefill([(1, 1000.0)])
    # 1 ms a token against 0.5 ms and 100 ms once.
    assert break_even_tokens(gpu, Tier(name="nvme", bytes_s=2e6, first_s=0.1), 1000) == 200
    assert break_even_tokens(gpu, Tier(name="nvme", bytes_s=1e6, first_s=0.1), 1000) is None
    assert break_even_tokens(gpu, FAST, 1000) == 1
    rising = Prefill([(1000, 1000.0), (2000, 500.0)])
    # Slower than the GPU up to 1,000; 1.5 ms a token and 100 ms: L * L / 1e6 = 0.0015 L + 0.1.
    assert break_even_tokens(rising, Tier(name="nvme", bytes_s=1e6 / 1.5, first_s=0.1), 1000) == 1564


def test_break_even_is_the_first_length_that_pays():
    rng = random.Random(3)
    for _ in range(40):
        gpu = Prefill([(500, 700 + rng.random() * 600), (1000, 1000.0), (2500, 400 + rng.random() * 600)])
        tier = Tier(name="nvme", bytes_s=10 ** (5.7 + rng.random()), first_s=rng.random())
        tried = range(1, 20_000)
        first = next((each for each in tried if gpu.seconds(each) >= tier.restore_s(each * 1000)), None)
        found = break_even_tokens(gpu, tier, 1000)
        assert found == first or (first is None and (found is None or found >= tried.stop))


def test_what_a_hit_saves_by_hand():
    slow = Tier(name="nvme", bytes_s=KIB_TOKEN * 500, first_s=0.1)
    ddr = Tier(name="ddr", bytes_s=KIB_TOKEN * 10_000, first_s=0.01)
    both = costs(ddr=ddr, nvme=slow)
    assert both.saved_s(Held(1000, 1000, 0)) == pytest.approx(1.0 - 0.01 - 0.1)
    assert both.saved_s(Held(1000, 1000, 1000)) == pytest.approx(0.89), "NVMe is slower than the GPU: left where it is"
    assert both.saved_s(Held(0, 500, 500)) == 0.0
    quick = costs(ddr=ddr, nvme=replace(slow, bytes_s=KIB_TOKEN * 10_000))
    assert quick.saved_s(Held(1000, 1000, 1000)) == pytest.approx(2.0 - 0.11 - 0.2)
    assert quick.saved_s(Held(0, 0, 0)) == 0.0


def test_prices():
    found = prices("ddr=3/GiB-month,nvme=102.4/TiB-month,gpu=2.5/h")
    assert found == {"ddr": 3.0, "nvme": pytest.approx(0.1), "gpu": 2.5}
    assert prices("ddr=1/GB-month,gpu=1/h")["ddr"] == pytest.approx(2**30 / 1e9)
    of = costs(nvme=FAST, ddr_gib_month=3.0, nvme_gib_month=0.1, gpu_hour=2.0)
    assert of.price_month(2 * GIB_BYTES, 10 * GIB_BYTES) == pytest.approx(7.0)
    assert of.gpu_month(1800.0, 3600.0) == pytest.approx(730.0), "half of a GPU for a month at 2 an hour"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ddr=0/GiB-month,gpu=1/h", "more than 0"),
        ("ddr=-1/GiB-month,gpu=1/h", "each once"),
        ("ddr=1/h,gpu=1/h", "the unit is one of GiB-month"),
        ("ddr=1/GiB-month,gpu=1/GiB-month", "the unit is one of h"),
        ("ddr=1/GiB-month", "gpu is missing"),
        ("gpu=1/h", "ddr is missing"),
        ("ddr=1/GiB-month,ddr=1/GiB-month,gpu=1/h", "each once"),
        ("", "each once"),
    ],
)
def test_prices_that_make_no_sense(text, told):
    with pytest.raises(UsageError, match=told):
        prices(text)


def test_what_comes_again_by_hand():
    found = load.measure(requests_of([(1, 2), (3,), (1, 2), (1, 9)]), costs())
    assert found.unique_blocks == 4
    assert found.seen_tokens == 1023 + 512, "the last token of a prompt is always computed"
    assert found.reuse == (load.Again(2, 1), load.Again(3, 2))
    assert found.reuse_bytes(0.5) == 3 * BLOCK_BYTES
    assert found.shorter(1024) == 1
    assert found.prefill_s == pytest.approx(0.512 + 3 * 1.024)
    assert found.span_s == 3.0


def test_what_lies_between_is_what_was_used_since():
    rng = random.Random(7)
    chains = [tuple(rng.sample(range(30), rng.randint(1, 6))) for _ in range(300)]
    expected = []
    for number, chain in enumerate(chains):
        for block in chain:
            before = [at for at in range(number) if block in chains[at]]
            if not before:
                break
            expected += [len(set().union(*chains[before[-1] : number]))]
    found = load.measure(requests_of(chains), costs())
    assert sorted(expected) == [each.between_blocks for each in found.reuse for _ in range(each.blocks)]


def test_sizes_to_try():
    found = load.measure(requests_of([range(100), range(100)]), costs())
    assert sweep.sizes(found, 1.0, 1e9, 3) == [16 * MIB_BYTES, 32 * MIB_BYTES, 64 * MIB_BYTES], "all of it is 50 MiB"
    assert sweep.sizes(found, 1.0, 2 / 1024, 8) == [MIB_BYTES // 2, MIB_BYTES, 2 * MIB_BYTES], (
        "all of the gain buys 2 MiB"
    )
    assert sweep.sizes(found, 1.0, 0.0, 8) == []
    assert sweep.doublings(3, 13, "--x") == [3, 6, 12]
    for low, high in ((4, 3), (0, 4), (1, 1 << 16)):
        with pytest.raises(UsageError, match="--x: from a size"):
            sweep.doublings(low, high, "--x")


def test_the_best_size_by_hand(tmp_path):
    # Two blocks, ten times in an hour less 6 min: nine times 1,023 of 1,024 tokens are found.
    found = plan_of(tmp_path, [(1, 2)] * 10, gap_s=360.0)
    assert found.best is not None
    assert found.best.ddr_bytes == 2 * BLOCK_BYTES
    assert found.best.hit_tokens == 9 * 1023
    restore_s = 1e-6 + 1023 * KIB_TOKEN / 1e12
    assert found.best.saved_s == pytest.approx(9 * (1.023 - restore_s))
    assert found.best.saved_month == pytest.approx(found.best.saved_s / 3240 * 730)
    assert found.best.price_month == pytest.approx(0.001 / 1024)
    assert [case.holds for case in verdict.cases(found)] == [False, False, False]
    first, *_ = verdict.sentences(found)
    assert first.startswith("Buy 1.0 MiB of DDR: ")
    assert "90% of what prefill costs" in first
    dear = plan_of(tmp_path, [(1, 2)] * 10, costs(ddr_gib_month=1e6), gap_s=360.0, ddr_sizes=[2 * BLOCK_BYTES])
    assert dear.best is None
    assert verdict.sentences(dear)[0].startswith("Buy nothing: no size saves what it costs")


def test_a_plan_names_where_the_next_doubling_costs_more_than_it_saves(tmp_path):
    chains = [(number % 4,) for number in range(400)]
    found = plan_of(tmp_path, chains, ddr_sizes=[BLOCK_BYTES << power for power in range(5)])
    assert found.best is not None
    assert found.best.ddr_bytes == 4 * BLOCK_BYTES, "all four blocks"
    told = verdict.sentences(found)
    assert "The whole trace fits: more DDR would save nothing." in told
    half = replace(found, best=found.find(2 * BLOCK_BYTES, 0))
    assert half.best is not None
    saved = found.best.saved_month - half.best.saved_month
    assert saved > 0
    more = f"Twice the DDR would cost 0.00 more a month, and save {verdict.money(saved)} more."
    assert verdict.sentences(half)[1] == more
    largest = plan_of(tmp_path, chains, ddr_sizes=[BLOCK_BYTES, 2 * BLOCK_BYTES])
    assert "Twice the DDR was not looked at." in verdict.sentences(largest)


def test_independent_requests_are_named(tmp_path):
    found = plan_of(tmp_path, [(number,) for number in range(50)])
    assert found.points == ()
    assert found.best is None
    assert [(case.name, case.holds) for case in verdict.cases(found)] == [
        ("short contexts", False),
        ("independent requests", True),
        ("one small host", False),
    ]
    assert "an unlimited cache would find 0% of the prompt tokens" in verdict.cases(found)[1].sentence
    assert report.show(found)


def test_short_contexts_are_named(tmp_path):
    late = costs(ddr=Tier(name="ddr", bytes_s=1e12, first_s=0.2))
    found = plan_of(tmp_path, [(1,)] * 20, late, tokens=100)
    case = verdict.cases(found)[0]
    assert case.holds
    assert case.sentence == "100% of the requests are too short for DDR (below 201 tokens)."
    assert found.best is None
    never = plan_of(tmp_path, [(1,)] * 20, costs(ddr=Tier(name="ddr", bytes_s=1e3, first_s=0.2)))
    assert "Restoring from DDR is faster than computing never: the GPU is always faster." in verdict.break_even(never)


def test_one_small_host_is_named(tmp_path):
    found = plan_of(tmp_path, [(1, 2)] * 10, gap_s=360.0)
    far = replace(found, load=replace(found.load, reuse=(load.Again(1000, 10),)))
    case = verdict.cases(far)[2]
    assert case.holds
    assert "up to 500 MiB of KV in between; 1.0 MiB of DDR, what pays best, holds less" in case.sentence
    none = replace(far, best=None)
    assert "pays for" in verdict.cases(none)[2].sentence


def test_what_nvme_is_too_slow_for_is_no_choice(tmp_path):
    chains = [(number % 12,) for number in range(600)]
    quick = costs(nvme=Tier(name="nvme", bytes_s=1e9, first_s=1e-5), nvme_gib_month=1e-6)
    sizes = {"ddr_sizes": [BLOCK_BYTES], "nvme_sizes": [16 * BLOCK_BYTES]}
    found = plan_of(tmp_path, chains, quick, **sizes)
    assert found.best is not None
    assert found.best.nvme_bytes == 16 * BLOCK_BYTES
    assert found.too_fast is None
    # One block of 512 KiB a second, read: at 0.1 MB/s that takes more time than there is.
    slow = costs(nvme=Tier(name="nvme", bytes_s=1e5, first_s=1e-5), nvme_gib_month=1e-6)
    slow = replace(slow, prefill=Prefill([(1, 10.0)]))
    found = plan_of(tmp_path, chains, slow, **sizes)
    assert found.best is None or found.best.nvme_bytes == 0
    assert found.too_fast is not None
    assert any("times the rate that NVMe has" in told for told in verdict.sentences(found))


def test_a_trace_without_time_is_refused(tmp_path):
    with pytest.raises(TraceError, match="all requests come at one moment"):
        plan_of(tmp_path, [(1,), (1,)], gap_s=0.0)


def test_a_size_below_a_block_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--ddr-sizes: the smallest is less than a block of 524288 bytes"):
        plan_of(tmp_path, [(1,), (1,)], ddr_sizes=[1024])


def test_a_picture_is_an_svg_and_the_same_twice(tmp_path):
    of = costs(nvme=Tier(name="nvme", bytes_s=1e9, first_s=1e-5))
    found = plan_of(tmp_path, [(number % 12,) for number in range(100)], of)
    for name in ("a.svg", "b.svg"):
        plot.draw(found, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert "Belady" in text
    nothing = plan_of(tmp_path, [(number,) for number in range(10)])
    plot.draw(nothing, tmp_path / "c.svg")
