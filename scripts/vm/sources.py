"""Where this machine gets its Debian packages from, read out of its own apt sources."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vm.error import BedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

APT = "etc/apt"
_ONE_LINE = re.compile(
    r"^deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<components>(?:\s+\S+)*)$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One archive and one suite of it that apt is told to use."""

    uri: str
    suite: str
    components: tuple[str, ...]


def parse_list(text: str) -> Iterator[Source]:
    """Yield the binary sources of a file in the one-line format (``*.list``)."""
    for line in text.splitlines():
        match = _ONE_LINE.match(line.partition("#")[0].strip())
        if match:
            yield Source(uri=match["uri"], suite=match["suite"], components=tuple(match["components"].split()))


def parse_deb822(text: str) -> Iterator[Source]:
    """Yield the binary sources of a file in the deb822 format (``*.sources``), those switched off left out."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        fields = _fields(stanza)
        if fields.get("enabled", "yes").lower() in {"no", "false", "0"} or "deb" not in fields.get("types", "").split():
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield Source(uri=uri, suite=suite, components=tuple(fields.get("components", "").split()))


def _fields(stanza: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line[:1].isspace():
            fields[name] = f"{fields.get(name, '')} {line.strip()}"
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields


def read(root: Path) -> list[Source]:
    """Return all sources of the machine whose root directory is `root`, in apt's order."""
    apt = root / APT
    main = apt / "sources.list"
    parts = sorted(path for path in (apt / "sources.list.d").glob("*") if path.suffix in {".list", ".sources"})
    found: list[Source] = []
    for path in [*([main] if main.is_file() else []), *parts]:
        text = path.read_text(encoding="utf-8", errors="replace")
        found += parse_deb822(text) if path.suffix == ".sources" else parse_list(text)
    return found


def mirror(root: Path) -> str:
    """Return the address of the Debian archive that the machine uses.

    A security archive and archives of other vendors are passed over: they hold no suite of Debian's own with a
    component `main`.

    Raises
    ------
    BedError
        No such source.
    """
    for source in read(root):
        suite = source.suite.rstrip("/")
        if "main" in source.components and "security" not in suite and "security" not in source.uri:
            return source.uri
    raise BedError(
        f"no Debian archive in {root / APT}/sources.list and sources.list.d",
        "name one there, as for apt-get; vm-test takes the address from it",
    )
