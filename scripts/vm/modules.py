"""The guest kernel's modules: which ones a module needs, read from the module itself."""

from __future__ import annotations

import lzma
from typing import TYPE_CHECKING

from vm.error import BedError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SUFFIXES = (".ko", ".ko.xz")
_DEPENDS = b"\0depends="


def load_order(folder: Path, names: Iterable[str]) -> list[tuple[str, bytes]]:
    """Return name and content of these modules and of all they need, what is needed first.

    Parameters
    ----------
    folder
        The kernel's folder of modules.
    names
        Names as in `lsmod`.

    Raises
    ------
    BedError
        The kernel has no such module.
    """
    # A file is named with - or _, a module with _ only.
    files = {_name(path): path for path in (folder / "kernel").rglob("*.ko*") if path.name.endswith(SUFFIXES)}
    loaded: dict[str, bytes] = {}

    def load(name: str) -> None:
        if name in loaded:
            return
        if name not in files:
            raise BedError(f"the kernel in {folder} has no module {name}", "see MODULES in scripts/vm/image.py")
        content = files[name].read_bytes()
        if files[name].suffix == ".xz":
            content = lzma.decompress(content)
        for other in needs(content):
            load(other)
        loaded[name] = content

    for name in names:
        load(name)
    return list(loaded.items())


def needs(content: bytes) -> list[str]:
    """Return the modules that a module says it needs, in the list of its section ``.modinfo``."""
    start = content.find(_DEPENDS)
    if start < 0:
        return []
    start += len(_DEPENDS)
    return [name for name in content[start : content.index(b"\0", start)].decode().replace("-", "_").split(",") if name]


def _name(path: Path) -> str:
    return path.name.partition(".")[0].replace("-", "_")
