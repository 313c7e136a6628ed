"""How large the KV of a token is: from the shape of a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvctl.exits import CtlError, Exit, UsageError

DTYPE_BYTES: Final = {
    "fp32": 4,
    "float32": 4,
    "fp16": 2,
    "float16": 2,
    "bf16": 2,
    "bfloat16": 2,
    "fp8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
}
"""Bytes of an element, by our names and by those of config.json."""
COUNT_MAX: Final = 1 << 16
"""Of layers, heads and elements of a head: more than any model has."""
CONFIG_BYTES_MAX: Final = 1 << 20
KEYS: Final = ("layers", "kv_heads", "head_dim", "dtype")
FULL_ATTENTION: Final = "full_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What decides the KV of a token.

    Attributes
    ----------
    layers
        That keep KV.
    layer_elements
        Of a token in one layer: K and V of each head, or the latent of MLA.
    dtype
        Of an element.
    """

    layers: int
    layer_elements: int
    dtype: str

    @property
    def token_bytes(self) -> int:
        """KV of one token, in bytes."""
        return self.layers * self.layer_elements * DTYPE_BYTES[self.dtype]


def parse(text: str) -> Shape:
    """Return the shape of ``layers=32,kv_heads=8,head_dim=128,dtype=fp16``, or of a model's config.json.

    Raises
    ------
    UsageError
        If it is no shape that a model can have.
    CtlError
        If the file can't be read, or does not say the shape.
    """
    if "=" not in text:
        return _of_file(Path(text))
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if key not in KEYS or not equals or key in found:
            raise UsageError(f"--model {part.strip()}: {', '.join(f'{each}=' for each in KEYS)} each once, or a file")
        found[key] = value
    missing = [key for key in KEYS if key not in found]
    if missing:
        raise UsageError(f"--model {text}: {', '.join(missing)} is missing")
    layers, heads, head = (_count(f"--model {key}", _integer(found[key])) for key in KEYS[:3])
    return Shape(layers=layers, layer_elements=2 * heads * head, dtype=_dtype("--model dtype", found["dtype"]))


def _of_file(path: Path) -> Shape:
    where = f"--model {path}"
    try:
        with path.open("rb") as file:
            text = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise CtlError(f"{where}: {error.strerror}", Exit.NOT_FOUND, "ENOENT") from error
    if len(text) > CONFIG_BYTES_MAX:
        raise CtlError(f"{where}: larger than {CONFIG_BYTES_MAX} bytes", Exit.DAMAGED, "EBADMSG")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CtlError(f"{where}: no JSON: {error}", Exit.DAMAGED, "EBADMSG") from error
    if not isinstance(config, dict):
        raise CtlError(f"{where}: no JSON object", Exit.DAMAGED, "EBADMSG")
    return of_config(config, where)


def of_config(config: dict[str, Any], where: str) -> Shape:
    """Return the shape that a Hugging Face config.json describes.

    Parameters
    ----------
    config
        Its content.
    where
        Begins each error.

    Raises
    ------
    UsageError
        If it does not say the shape, or if not all layers keep all tokens: a guess would be wrong by a multiple.
    """
    inner = config.get("text_config")
    told = config | inner if isinstance(inner, dict) else config
    layers = _count(f"{where}: num_hidden_layers", told.get("num_hidden_layers"))
    kinds = told.get("layer_types")
    slides = told.get("sliding_window") is not None and told.get("use_sliding_window") is not False
    others = sorted({str(kind) for kind in kinds} - {FULL_ATTENTION}) if isinstance(kinds, list) else []
    if others or (slides and not isinstance(kinds, list)):
        told_of = ", ".join(others) or "sliding_window"
        raise UsageError(
            f"{where}: layers that do not keep every token ({told_of}); give layers=,kv_heads=,head_dim=,dtype= yourself"
        )
    dtype = _dtype(f"{where}: torch_dtype", told.get("torch_dtype", told.get("dtype")))
    if told.get("kv_lora_rank") is not None:
        # MLA keeps one latent a token and the part of the keys that holds the position.
        latent = _count(f"{where}: kv_lora_rank", told["kv_lora_rank"])
        rope = _count(f"{where}: qk_rope_head_dim", told.get("qk_rope_head_dim"))
        return Shape(layers=layers, layer_elements=latent + rope, dtype=dtype)
    attention = told.get("num_attention_heads")
    heads = _count(f"{where}: num_key_value_heads", told.get("num_key_value_heads", attention))
    head = told.get("head_dim")
    if head is None:
        head = _count(f"{where}: hidden_size", told.get("hidden_size")) // _count(
            f"{where}: num_attention_heads", attention
        )
    return Shape(layers=layers, layer_elements=2 * heads * _count(f"{where}: head_dim", head), dtype=dtype)


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _count(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= COUNT_MAX:
        raise UsageError(f"{what}: a whole number from 1 to {COUNT_MAX} is needed")
    return value


def _dtype(what: str, value: object) -> str:
    if not isinstance(value, str) or value not in DTYPE_BYTES:
        raise UsageError(f"{what}: one of {', '.join(DTYPE_BYTES)} is needed")
    return value
