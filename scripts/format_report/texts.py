"""Real text under free licences that is on every machine which can run the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text and where it is from."""

    name: str
    source: str
    text: str


def texts() -> list[Text]:
    """Return the texts; those of Python differ a little from version to version."""
    python = "Python's language reference, in its standard library (pydoc_data.topics), PSF-2.0"
    kvd = "kvd's own docs, Apache-2.0"
    return [
        Text(name="special method names", source=python, text=topics["specialnames"]),
        Text(name="compound statements", source=python, text=topics["compound"]),
        Text(name="device.md", source=kvd, text=(ROOT / "docs/device.md").read_text(encoding="utf-8")),
    ]
