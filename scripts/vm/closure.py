"""What of this machine's Python a guest needs: the interpreter, its libraries and the packages that the tests import.

Everything keeps its own absolute name in the guest, so that nothing has to be relocated: neither the virtual environment,
nor library paths, nor compiled modules.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import py_compile
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vm.error import BedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DISTRIBUTIONS = ("kvd", "hypothesis", "pytest", "pytest-timeout", "pytest-trio")
"""What the tests import; what these require comes along."""
LOADED_BY_NAME = ("libudev.so.1",)
"""Libraries that a package opens itself (pyudev), so that no executable names them. Left out where the machine has none."""
STDLIB_LEFT_OUT = frozenset(
    {"__pycache__", "dist-packages", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tests"}
    | {"tkinter", "turtledemo"}
)
STDLIB_LEFT_OUT_START = ("config-", "_test", "_tkinter", "_ctypes_test", "xxlimited", "_xxtestfuzz")
LDD_S_MAX = 60.0

_LIBRARY = re.compile(r"(?P<path>/\S+) \(0x[0-9a-f]+\)")
_MISSING = re.compile(r"^\s*(?P<name>\S+) => not found", re.MULTILINE)


def files(compiled: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each file that is needed: its name in the guest, and where it lies here.

    Parameters
    ----------
    compiled
        A folder for compiled modules, see `compiled_forms`.
    """
    found = [Path(sys.executable), Path(sys.prefix) / "pyvenv.cfg", *standard_library(), *packages()]
    for path in found:
        yield path, path
        if path.suffix == ".py":
            yield from compiled_forms(path, compiled)
    yield from ((path, path) for path in libraries(path for path in found if _is_binary(path)))


def standard_library() -> Iterator[Path]:
    """Yield the files of the standard library that a test without a screen may want."""
    yield from _walk(Path(sysconfig.get_path("stdlib")))


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in STDLIB_LEFT_OUT or path.name.startswith(STDLIB_LEFT_OUT_START):
            continue
        if path.is_dir():
            yield from _walk(path)
        elif path.suffix in {".py", ".so"}:
            yield path


def packages() -> Iterator[Path]:
    """Yield the files of `DISTRIBUTIONS` and of all they require, without compiled modules and programs.

    Raises
    ------
    BedError
        One is not installed.
    """
    outside = Path(sys.prefix) / "bin"
    for distribution in _required(DISTRIBUTIONS):
        for file in distribution.files or []:
            path = Path(str(distribution.locate_file(file))).absolute()
            path = Path(*_normal(path.parts))
            if path.suffix != ".pyc" and not path.is_relative_to(outside) and path.is_file():
                yield path


def _normal(parts: Iterable[str]) -> list[str]:
    normal: list[str] = []
    for part in parts:
        if part == "..":
            normal.pop()
        else:
            normal.append(part)
    return normal


def _required(names: Iterable[str]) -> list[importlib.metadata.Distribution]:
    queue = list(names)
    found: dict[str, importlib.metadata.Distribution] = {}
    while queue:
        name = canonicalize_name(queue.pop())
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise BedError(f"the Python package {name} is not in {sys.prefix}", "run `make build`") from None
        for text in found[name].requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                queue.append(requirement.name)
    return [found[name] for name in sorted(found)]


def compiled_forms(source: Path, folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the compiled forms of a module (name in the guest, place here): Python's, and pytest's if it has made one.

    Parameters
    ----------
    source
        A Python file.
    folder
        A Python cache prefix: there lies what this machine has not kept beside the source.
    """
    kept = Path(importlib.util.cache_from_source(str(source)))
    beside = folder / source.parent.relative_to("/")
    for path in beside.glob(f"{source.stem}.{sys.implementation.cache_tag}-pytest-*.pyc"):
        yield kept.with_name(path.name), path
    if _is_current(kept, source):
        yield kept, kept
        return
    made = beside / kept.name
    if not _is_current(made, source):
        try:
            py_compile.compile(str(source), cfile=str(made), dfile=str(source), doraise=True)
        except py_compile.PyCompileError:
            return  # a template or a test of a package: not a module that anybody imports
    yield kept, made


def _is_current(compiled: Path, source: Path) -> bool:
    """Say whether Python would take a compiled module for this source: version, time and size in its head agree."""
    try:
        with compiled.open("rb") as file:
            head = file.read(16)
    except OSError:
        return False
    status = source.stat()
    numbers = (0, int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    return head == importlib.util.MAGIC_NUMBER + b"".join(number.to_bytes(4, "little") for number in numbers)


def _is_binary(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def libraries(binaries: Iterable[Path]) -> list[Path]:
    """Return all shared libraries that these executables and libraries load, and those that are opened by name.

    Raises
    ------
    BedError
        This machine lacks one.
    """
    output = _run(["ldd", *(str(path) for path in binaries)])
    if missing := sorted(set(_MISSING.findall(output))):
        raise BedError(f"this machine lacks {', '.join(missing)}", "run `make build`, which says what it needs")
    found = {Path(match["path"]) for match in _LIBRARY.finditer(output)}
    cache = _run(["/sbin/ldconfig", "-p"])
    for name in LOADED_BY_NAME:
        if match := re.search(rf"^\s*{re.escape(name)} \(libc6,x86-64\) => (?P<path>\S+)$", cache, re.MULTILINE):
            found.add(Path(match["path"]))
            found.update(Path(other["path"]) for other in _LIBRARY.finditer(_run(["ldd", match["path"]])))
    return sorted(found)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LDD_S_MAX)
    return done.stdout
