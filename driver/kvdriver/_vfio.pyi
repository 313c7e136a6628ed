"""A device behind VFIO as cffi compiles it; the declarations are in csrc/vfio/vfio.h."""

from typing import Any

ffi: Any
lib: Any
