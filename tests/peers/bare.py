"""Packages of which only some modules are wanted: their ``__init__`` would import half of an inference server."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path


def packages(*names: str) -> None:
    """Put empty packages in place of real ones; their modules are found as before.

    Parameters
    ----------
    names
        Packages, outer ones first.
    """
    top = names[0].partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"No module named {top!r}")
    root = Path(spec.submodule_search_locations[0])
    for name in names:
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package


def module(name: str, **content: object) -> None:
    """Put a module with these names in it in place of a real one."""
    made = types.ModuleType(name)
    vars(made).update(content)
    sys.modules[name] = made
