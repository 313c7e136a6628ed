"""The report on formats, with a model that is none: what it measures, and how a model fails."""

import json
import sys
from pathlib import Path

import pytest

from format_report import __main__ as report
from format_report.model import Model, WorkerError

WORKER = """
import json, struct, sys
import numpy as np

def tensors(seed):
    random = np.random.default_rng(seed)
    return {name: random.standard_normal((1, 2, 300, 64)).astype("<f2") for name in ("layers.0.keys", "layers.0.values")}

def answer(request):
    match request["do"]:
        case "load":
            return {"model": "none", "layers": 1, "kv_heads": 2, "head_dim": 64}
        case "prefill":
            header, at, data = {}, 0, b""
            for name, array in tensors(len(request["text"])).items():
                header[name] = {"dtype": "F16", "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
                at += array.nbytes
                data += array.tobytes()
            text = json.dumps(header).encode()
            open(request["file"], "wb").write(struct.pack("<Q", len(text)) + text + data)
            return {"tokens": 1}
        case "judge":
            # The likeliest token is that of the sum of the values: another where they differ much.
            values = np.frombuffer(open(request["file"], "rb").read()[-2 * 2 * 300 * 64:], "<f2").astype(float)
            return {"top": [int(part.sum()) for part in values.reshape(300, 128)], "nll": [1.0] * 300}

for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
"""


@pytest.fixture
def worker(tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    monkeypatch.setattr(report, "WORKER", script)
    return script


def test_the_report_of_a_model(worker, capfd):
    assert report.main(["--json", "--python", sys.executable]) == 0
    found = json.loads(capfd.readouterr().out)
    rows = {row["name"]: row for row in found["formats"]}
    assert (rows["raw"]["top1_agreement"], rows["zstd"]["top1_agreement"]) == (1, 1)
    assert (rows["raw"]["exact"], rows["zstd"]["exact"], rows["int8"]["exact"]) == (True, True, False)
    assert 0 < rows["int8"]["relative_l2_v"] < rows["fp8-e4m3"]["relative_l2_v"] < rows["int4"]["relative_l2_v"] < 0.1
    assert rows["int4"]["top1_agreement"] < rows["int8"]["top1_agreement"] < 1
    assert rows["int8 K, int4 V"]["relative_l2_k"] == rows["int8"]["relative_l2_k"]
    assert rows["int8 K, int4 V"]["relative_l2_v"] == rows["int4"]["relative_l2_v"]
    assert rows["raw"]["ratio"] < 1 < rows["zstd"]["ratio"] < rows["int8"]["ratio"] < rows["int4"]["ratio"]
    assert rows["int8"]["perplexity"] == pytest.approx(2.718281828)
    assert report.main(["--python", sys.executable]) == 0
    assert "int8 K, int4 V" in capfd.readouterr().out


def test_a_model_that_fails_says_why(worker, capfd):
    worker.write_text("raise SystemExit('the model has gone')")
    assert report.main(["--python", sys.executable]) == 1
    assert "the model has gone" in capfd.readouterr().err
    assert report.main(["--python", "/no/such/python"]) == 1
    assert "/no/such/python" in capfd.readouterr().err


def test_a_model_that_is_silent_is_ended(worker, tmp_path, monkeypatch):
    worker.write_text("import sys; sys.stdin.read()")
    monkeypatch.setattr("format_report.model.ANSWER_S", 0.05)
    with pytest.raises(WorkerError, match="no answer"), Model(Path(sys.executable), worker, tmp_path / "log", 1):
        pass
