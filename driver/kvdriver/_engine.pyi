"""The page-table engine as cffi compiles it; the declarations are in csrc/engine/engine.h."""

from typing import Any

ffi: Any
lib: Any
