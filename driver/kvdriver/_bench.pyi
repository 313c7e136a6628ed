"""The rounds of the engine's benchmark as cffi compiles them; the declarations are in csrc/bench/bench.h."""

from typing import Any

ffi: Any
lib: Any
