"""Show what outgrows the rules of the tree: size, layers, hard-coded hosts, C names. Usage: lint_tree.py [ROOT].

Prints one ``file:line: reason`` for each outlier; the exit status is 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
SOURCE_FOLDERS = ("kvd", "driver", "cli", "csrc")
MEASURED_FOLDERS = (*SOURCE_FOLDERS, "scripts", "tests")
GENERATED = "generated, do not edit"
"""A file whose first lines say so is measured by nobody."""
GENERATED_LINES = 5

# docs/architecture.md, "Layers": a module may import what is in a lower row, and of its own row only itself. Of several names
# that match a module the longest decides.
ROWS: tuple[tuple[str, ...], ...] = (
    ("kvctl", "kvd.__main__"),
    ("kvd.daemon",),
    ("kvd.flush",),
    ("kvd.api",),
    ("kvd.control",),
    ("kvd.status",),
    ("kvd.fsck",),
    ("kvd.fs",),
    ("kvd.session",),
    ("kvd.tier",),
    ("kvd.catalog", "kvdriver", "kvd.lock", "kvd.mount", "kvd.notify", "kvd.config_check"),
    ("kvd.mount_system", "kvd.api.backend", "kvd.api.formats", "kvd.api.namespaces", "kvd.api.sessions"),
    (
        "kvd.config",
        "kvd.config_memory",
        "kvd.config_schema",
        "kvd.config_units",
        "kvd.format",
        "kvd.log",
        "kvd.mountinfo",
        "kvd.policy",
        "kvdriver.address",
    ),
    ("kvd.client", "kvd.errors", "kvd.patience", "kvd.version"),
    ("spec",),
)
LOWEST_SHARED = 11
"""From this row on, modules of one row may import each other (a cycle fails at the first import)."""

HOSTS = re.compile("|".join(re.escape(host) for host in ("pypi" + ".org", "python" + "hosted.org", "npm" + "js.org")))
SUFFIXES = frozenset(
    {"", ".py", ".c", ".h", ".build", ".options", ".toml", ".txt", ".in", ".sh", ".mk", ".md"}
    | {".service", ".rules", ".sysusers", ".tmpfiles"}
)
C_PREFIXES = {
    "abi": "abi",
    "bench": "bench",
    "engine": "engine",
    "format": "format",
    "convert": "convert",
    "fuse": "split",
    "mover": "mover",
    "policy": "policy",
    "vfio": "vfio",
    "model": "card",
    "common": "crc32c",
}
"""The word after ``kvd_`` in a component's interface; any other word too belongs to one component."""
_C_WORD = re.compile(r"^kvd_([a-z0-9]+)")
_C_FUNCTION = re.compile(r"^(?P<head>(?:[A-Za-z_][^;={}()#]*?\b)??)(?P<name>[A-Za-z_]\w*)\s*\(")
_C_INTERNAL = re.compile(r"\b(static|typedef)\b")


@dataclass(frozen=True, slots=True, order=True)
class Outlier:
    """One place that breaks a rule."""

    path: Path
    line: int
    reason: str


def module_of(path: Path) -> str:
    """Return the name under which a source file (relative to the root) is imported."""
    parts = path.with_suffix("").parts
    if parts[0] in {"driver", "cli"}:
        parts = parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def row_of(module: str) -> tuple[int, str] | None:
    """Return the row of a module and the entry that put it there; None for what is not ours."""
    owners = [(len(name), row, name) for row, names in enumerate(ROWS) for name in names if _within(module, name)]
    if not owners:
        return None
    _, row, name = max(owners)
    return row, name


def _within(module: str, name: str) -> bool:
    return module == name or module.startswith(name + ".")


def imports(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield line and name of each module that a source imports, in functions and for types too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*above, base]).rstrip(".")
            # `from kvd import log` names a module, `from kvd.log import get` something in one; `row_of` serves both.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def check_size(path: Path, text: str) -> Iterator[Outlier]:
    """Check the length of a source file and of the functions in it."""
    if (lines := len(text.splitlines())) > FILE_LINES_MAX:
        yield Outlier(path, FILE_LINES_MAX + 1, _too_long("file", lines, FILE_LINES_MAX))
    for line, length, name in _lengths(path, text):
        if length > FUNCTION_LINES_MAX:
            yield Outlier(path, line, _too_long(f"function {name}", length, FUNCTION_LINES_MAX))


def _lengths(path: Path, text: str) -> Iterator[tuple[int, int, str]]:
    """Yield first line, length and name of each function."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1, node.name
    elif path.suffix == ".c":
        yield from ((line, length, name) for line, length, name, _ in functions(text))


def check_python(path: Path, text: str) -> Iterator[Outlier]:
    """Check the imports of a Python file."""
    tree = ast.parse(text)
    module = module_of(path)
    own = row_of(module)
    if own is None:
        if module not in {"kvd", "kvdriver", "kvctl"}:
            yield Outlier(path, 1, f"module {module} is in no layer; add it to ROWS")
        return
    for line, name in imports(tree, module, is_package=path.name == "__init__.py"):
        other = row_of(name)
        if other is None or other[1] == own[1] or other[0] > own[0] or own[0] == other[0] >= LOWEST_SHARED:
            continue
        direction = "upwards" if other[0] < own[0] else "sideways"
        yield Outlier(path, line, f"{module} imports {direction}: {name}")


def functions(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield first line, length, name and head of each C function that is defined in a source."""
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines) if _C_FUNCTION.match(line)]
    for start, following in pairwise([*heads, len(lines)]):
        opening = next((n for n in range(start, following) if lines[n].rstrip().endswith(("{", ";"))), None)
        if opening is None or lines[opening].rstrip().endswith(";"):
            continue  # a declaration
        closing = next((n for n in range(opening, len(lines)) if lines[n].startswith("}")), opening)
        match = _C_FUNCTION.match(lines[start])
        assert match is not None
        # The type may stand on the line above.
        above = lines[start - 1] if start and not lines[start - 1].endswith((";", "}", "*/", "{")) else ""
        yield start + 1, closing - start + 1, match["name"], f"{above} {match['head']}"


def check_c(path: Path, text: str) -> Iterator[Outlier]:
    """Check that the functions of a C source that others can call begin with ``kvd_``."""
    component = path.parts[1] if len(path.parts) > 2 else ""  # noqa: PLR2004 (csrc/COMPONENT/FILE)
    if component not in C_PREFIXES:
        yield Outlier(path, 1, f"component {component or path.name} has no prefix; add it to C_PREFIXES")
    for line, _, name, head in functions(text):
        if not _C_INTERNAL.search(head) and not _C_WORD.match(name) and not name.startswith("__") and name != "main":
            yield Outlier(
                path, line, f"{name} is visible to all but does not begin with kvd_; make it static or rename"
            )


def check_c_words(root: Path, paths: Iterable[Path]) -> Iterator[Outlier]:
    """Check that the prefix names the place: the word after ``kvd_`` belongs to one component."""
    homes = {word: Path("csrc") / component for component, word in C_PREFIXES.items()}
    for path in sorted(paths):
        for line, _, name, head in functions((root / path).read_text(encoding="utf-8")):
            match = _C_WORD.match(name)
            if match is None or _C_INTERNAL.search(head):
                continue
            home = homes.setdefault(match[1], path.parent)
            if home != path.parent:
                yield Outlier(path, line, f"{name}: kvd_{match[1]}_ lives in {home}; rename or move it")


def _too_long(what: str, lines: int, lines_max: int) -> str:
    return f"{what} has {lines} lines, more than {lines_max}"


def check_file(root: Path, path: Path) -> Iterator[Outlier]:
    """Check one file; `path` is relative to `root`."""
    text = (root / path).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        if HOSTS.search(line):
            yield Outlier(path, number, "names the host of a package registry; leave that to pip's configuration")
    if GENERATED in "\n".join(text.splitlines()[:GENERATED_LINES]):
        return
    if path.parts[0] in MEASURED_FOLDERS and path.suffix in {".py", ".c", ".h"}:
        yield from check_size(path, text)
    if path.parts[0] not in SOURCE_FOLDERS:
        return
    if path.suffix == ".py":
        yield from check_python(path, text)
    elif path.suffix == ".c":
        yield from check_c(path, text)


def files(root: Path) -> Iterator[Path]:
    """Yield the files to check, relative to `root`: sources, and whatever else could name a host."""
    folders = (*SOURCE_FOLDERS, "scripts", "tests", "systemd", "requirements", "docs", ".ci")
    tops = [
        root / name
        for name in ("Makefile", "pyproject.toml", "meson.build", "meson.options", "README.md", "CHANGELOG.md")
    ]
    found = [*tops, *(path for folder in folders for path in (root / folder).rglob("*"))]
    for path in sorted(found):
        if path.is_file() and path.suffix in SUFFIXES and "__pycache__" not in path.parts:
            yield path.relative_to(root)


def main(root: Path) -> int:
    """Check the tree at `root`."""
    paths = list(files(root))
    sources = [path for path in paths if path.parts[0] == "csrc" and path.suffix == ".c"]
    outliers = sorted([*(o for path in paths for o in check_file(root, path)), *check_c_words(root, sources)])
    for outlier in outliers:
        sys.stdout.write(f"{outlier.path}:{outlier.line}: {outlier.reason}\n")
    return 1 if outliers else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]))
