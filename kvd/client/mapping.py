"""An object's bytes without a copy: a mapping, and arrays on it."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType


class Mapping:
    """A read-only mapping of a whole file; while it lives the object stays where it is.

    Views keep it alive: `close` fails with `BufferError` while there are any, and is not needed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size_bytes = os.fstat(descriptor).st_size
            self._map: mmap.mmap | bytes = (
                mmap.mmap(descriptor, self.size_bytes, prot=mmap.PROT_READ) if self.size_bytes else b""
            )
        finally:
            os.close(descriptor)

    def __repr__(self) -> str:
        return f"<Mapping {self.path} {self.size_bytes} bytes>"

    def __len__(self) -> int:
        return self.size_bytes

    def __enter__(self) -> Mapping:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap; `BufferError` while there are views."""
        if isinstance(self._map, mmap.mmap):
            self._map.close()

    def view(self) -> memoryview:
        """Return the bytes."""
        return memoryview(self._map)

    def numpy(self, dtype: Any, shape: Sequence[int] | None = None, *, offset: int = 0) -> Any:
        """Return a read-only array on the mapping; it has `__dlpack__`, so that others take it without a copy.

        Parameters
        ----------
        dtype
            NumPy's, or its name.
        shape
            Elements in each dimension, C order; one dimension to the end of the object if not given.
        offset
            Bytes before the first element.
        """
        import numpy as np  # noqa: PLC0415  (only who asks for arrays needs NumPy)

        count = -1
        if shape is not None:
            count = 1
            for extent in shape:
                count *= extent
        array = np.frombuffer(self._map, dtype=dtype, count=count, offset=offset)
        return array if shape is None else array.reshape(tuple(shape))

    def torch(self, dtype: Any, shape: Sequence[int] | None = None, *, offset: int = 0) -> Any:
        """Return a tensor on the mapping; who writes to it dies of SIGSEGV, since the mapping is read-only.

        Parameters
        ----------
        dtype
            PyTorch's.
        shape, offset
            As of `numpy`.
        """
        import warnings  # noqa: PLC0415  (as PyTorch)

        import torch  # noqa: PLC0415  (only who asks for tensors needs PyTorch)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it can't be written to is what is wanted
            tensor = torch.frombuffer(self._map, dtype=dtype, offset=offset)
        if shape is None:
            return tensor
        count = 1
        for extent in shape:
            count *= extent
        return tensor[:count].reshape(tuple(shape))
