"""Run the suite with nothing around it: ``python run.py --device vfio:0000:00:05.0``. Other options are pytest's.

Needs pytest, trio, pytest-trio, cffi and kvdriver; `tests/support` beside it and
`driver/spec/session.toml`, as in the tree.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
OPTIONS = (
    "trio_mode=true",
    f"pythonpath={HERE.parents[1]}",
    "filterwarnings=error",
    "addopts=--import-mode=importlib",
)


def main(arguments: list[str]) -> int:
    """Return pytest's exit status."""
    options = [word for option in OPTIONS for word in ("-o", option)]
    return int(
        pytest.main(
            [
                "-c",
                "/dev/null",
                f"--rootdir={HERE}",
                f"--confcutdir={HERE}",
                "-p",
                "no:cacheprovider",
                *options,
                *arguments,
                str(HERE),
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
