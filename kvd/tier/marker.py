"""The small file by which a tier's directory says whose it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kvd.errors import ConfigError

VERSION = 1
"""Of both markers; a higher one is a newer kvd's, whose files this one does not know."""

if TYPE_CHECKING:
    from pathlib import Path


def make(magic: str, **fields: object) -> dict[str, object]:
    """Return a marker's content."""
    return {"magic": magic, "version": VERSION, **fields}


def read(marker: Path, key: str, magic: str) -> dict[str, object] | None:
    """Return what a marker says, None where there is none.

    Raises
    ------
    ConfigError
        If it is another program's or a newer kvd's, damaged, or can't be read; `key` is the setting that names its
        directory.
    """
    try:
        found = json.loads(marker.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{key}: {marker}: {error.strerror}; set a directory that kvd can use") from error
    except ValueError as error:
        raise ConfigError(f"{key}: {marker} is damaged; restore it or set another directory") from error
    if not isinstance(found, dict) or found.get("magic") != magic:
        raise ConfigError(f"{key}: {marker} is not kvd's; set another directory")
    if (version := found.get("version")) != VERSION:
        raise ConfigError(
            f"{key}: {marker} has version {version}, this kvd knows {VERSION};"
            " install a newer kvd or set another directory"
        )
    return found


def write(marker: Path, key: str, content: dict[str, object]) -> None:
    """Write a marker.

    Raises
    ------
    ConfigError
        If the directory does not take it.
    """
    try:
        marker.write_text(json.dumps(content) + "\n")
    except OSError as error:
        raise ConfigError(f"{key}: {marker}: {error.strerror}; set a directory that kvd can write") from error
