"""Objects as engines store them, for tests of formats: safetensors, npy and bytes that declare nothing."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass

import numpy as np

LAYERS, TOKENS, HEADS, DIM = 2, 256, 4, 64
LAYOUT = f"fp16 layers={LAYERS} kv=2 tokens heads={HEADS} dim={DIM}"
"""What `opaque` holds."""
BOUNDS = {"zstd": 0.0, "fp8-e4m3": 0.04, "fp8-e5m2": 0.08, "int8": 0.012, "int4": 0.2}
"""The relative L2 that each format stays below for values as these are."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A file's bytes, of which the first `header_bytes` are not values."""

    content: bytes
    header_bytes: int

    def values(self, content: bytes | None = None) -> np.ndarray:
        """Return the values of this content, or of another of the same layout."""
        return np.frombuffer((content or self.content)[self.header_bytes :], dtype="<f2").astype(np.float64)

    def error(self, content: bytes) -> float:
        """Return the relative L2 of what came back."""
        before, after = self.values(), self.values(content)
        return float(np.linalg.norm(after - before) / np.linalg.norm(before))

    def check(self, content: bytes, name: str) -> None:
        """See that what came back is what a format promises."""
        assert len(content) == len(self.content)
        assert content[: self.header_bytes] == self.content[: self.header_bytes]
        if BOUNDS[name]:
            assert 0 < self.error(content) < BOUNDS[name]
        else:
            assert content == self.content


def cache(seed: int, *, tokens: int = TOKENS, layers: int = LAYERS) -> np.ndarray:
    """Return values as a cache has them: channels of different sizes."""
    draw = np.random.default_rng(seed)
    scale = draw.uniform(0.2, 4.0, size=(layers, 2, 1, HEADS, DIM))
    return (draw.standard_normal((layers, 2, tokens, HEADS, DIM)) * scale).astype("<f2")


def opaque(seed: int = 1, *, tokens: int = TOKENS, layers: int = LAYERS) -> Stored:
    return Stored(content=cache(seed, tokens=tokens, layers=layers).tobytes(), header_bytes=0)


def safetensors(seed: int = 2, *, tokens: int = TOKENS, layers: int = LAYERS) -> Stored:
    values = cache(seed, tokens=tokens, layers=layers)
    header: dict[str, object] = {}
    body, at = b"", 0
    for layer in range(layers):
        for which, name in enumerate(("k", "v")):
            part = values[layer, which].tobytes()
            header[f"layers.{layer}.{name}"] = {
                "dtype": "F16",
                "shape": [tokens, HEADS, DIM],
                "data_offsets": [at, at + len(part)],
            }
            body, at = body + part, at + len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return Stored(content=struct.pack("<Q", len(text)) + text + body, header_bytes=8 + len(text))


def npy(seed: int = 3, *, tokens: int = TOKENS, layers: int = LAYERS) -> Stored:
    values = cache(seed, tokens=tokens, layers=layers)
    shape = ", ".join(map(str, values.shape))
    text = f"{{'descr': '<f2', 'fortran_order': False, 'shape': ({shape}), }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()
    return Stored(content=head + values.tobytes(), header_bytes=len(head))


KINDS = {"safetensors": safetensors, "npy": npy, "opaque": opaque}


def noise(length: int, seed: int = 4) -> bytes:
    """Return bytes that nothing makes smaller."""
    return random.Random(seed).randbytes(length)
