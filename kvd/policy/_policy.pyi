"""The Gittins policy as cffi compiles it; the declarations are in csrc/policy/policy.h."""

from typing import Any

ffi: Any
lib: Any
