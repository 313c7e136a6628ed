"""The lint of the tree finds what it is for, and nothing in this tree."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/lint_tree.py"


@pytest.fixture(scope="module")
def lint():
    import sys

    spec = importlib.util.spec_from_file_location("lint_tree", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["lint_tree"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["lint_tree"]


def said(lint, capsys, root: Path, name: str, text: str) -> str:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    status = lint.main(root)
    out = capsys.readouterr().out
    assert status == (1 if out else 0)
    return out


FUNCTION = "def f():\n" + "    x = 1\n" * 70
C_FUNCTION = "static int f(int a,\n\t     int b)\n{\n" + "\tb++;\n" * 67 + "}\n"


@pytest.mark.parametrize(
    ("name", "text", "outlier"),
    [
        ("kvd/log.py", "x = 1\n" * 401, "kvd/log.py:401: file has 401 lines, more than 400\n"),
        ("csrc/engine/a.h", "\n" * 401, "csrc/engine/a.h:401: file has 401 lines, more than 400\n"),
        ("kvd/log.py", "\n" + FUNCTION, "kvd/log.py:2: function f has 71 lines, more than 70\n"),
        ("csrc/engine/a.c", "\n" + C_FUNCTION, "csrc/engine/a.c:2: function f has 71 lines, more than 70\n"),
        (
            "csrc/engine/a.c",
            "int f(void)\n{\n}\n",
            "csrc/engine/a.c:1: f is visible to all but does not begin with kvd_",
        ),
        (
            "csrc/engine/a.c",
            "int kvd_mover_f(void)\n{\n}\n",
            "csrc/engine/a.c:1: kvd_mover_f: kvd_mover_ lives in csrc/mover",
        ),
        (
            "csrc/fuse/a.c",
            "char *\nf(void)\n{\n}\n",
            "csrc/fuse/a.c:2: f is visible to all but does not begin with kvd_",
        ),
        ("csrc/other/a.c", "static int f(void)\n{\n}\n", "csrc/other/a.c:1: component other has no prefix"),
        ("kvd/errors.py", "from kvd import log\n", "kvd/errors.py:1: kvd.errors imports upwards: kvd.log\n"),
        (
            "kvd/tier/a.py",
            "def f():\n    import kvd.fs.split\n",
            "kvd/tier/a.py:2: kvd.tier.a imports upwards: kvd.fs.split\n",
        ),
        ("kvd/tier/a.py", "from ..fs import split\n", "kvd/tier/a.py:1: kvd.tier.a imports upwards: kvd.fs.split\n"),
        (
            "kvd/fs/__init__.py",
            "from ..api import app\n",
            "kvd/fs/__init__.py:1: kvd.fs imports upwards: kvd.api.app\n",
        ),
        ("kvd/catalog/a.py", "import kvdriver\n", "kvd/catalog/a.py:1: kvd.catalog.a imports sideways: kvdriver\n"),
        ("driver/kvdriver/a.py", "import kvd.tier\n", "driver/kvdriver/a.py:1: kvdriver.a imports upwards: kvd.tier\n"),
        ("kvd/new.py", "", "kvd/new.py:1: module kvd.new is in no layer; add it to ROWS\n"),
        ("Makefile", "x:\n\tcurl https://pypi" + ".org\n", "Makefile:2: names the host of a package registry"),
        ("tests/t1_core/a.py", "x = 1\n" * 401, "tests/t1_core/a.py:401: file has 401 lines, more than 400\n"),
        ("tests/c/a.c", "\n" + C_FUNCTION, "tests/c/a.c:2: function f has 71 lines, more than 70\n"),
        ("scripts/a.py", FUNCTION, "scripts/a.py:1: function f has 71 lines, more than 70\n"),
        ("systemd/x.rules", "# pypi" + ".org\n", "systemd/x.rules:1: names the host of a package registry"),
        ("meson.options", "# pypi" + ".org\n", "meson.options:1: names the host of a package registry"),
        ("CHANGELOG.md", "pypi" + ".org\n", "CHANGELOG.md:1: names the host of a package registry"),
        ("docs/x.md", "files.python" + "hosted.org", "docs/x.md:1: names the host of a package registry"),
    ],
)
def test_outliers_are_found(lint, capsys, tmp_path, name, text, outlier):
    out = said(lint, capsys, tmp_path, name, text)
    assert out.startswith(outlier)
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kvd/log.py", "x = 1\n" * 400),
        ("kvd/log.py", FUNCTION.removesuffix("    x = 1\n")),
        ("kvd/log.py", '"""Generated, do not edit."""\n'.lower() + "x = 1\n" * 500),
        ("kvd/tier/_mover.pyi", "x: int\n" * 500),
        ("csrc/engine/a.c", C_FUNCTION.replace("\tb++;\n", "", 1)),
        (
            "csrc/engine/a.c",
            "int kvd_engine_f(void)\n{\n}\nstatic\nint f(void)\n{\n}\nint g(void);\nstatic_assert(1);\n",
        ),
        ("csrc/common/a.c", "uint32_t kvd_crc32c(uint32_t crc)\n{\n\treturn g(crc);\n}\n"),
        (
            "kvd/fs/a.py",
            "from kvd.tier import mover\nfrom kvd.api.backend import Step\nfrom kvd import errors\nimport trio\n",
        ),
        ("kvd/api/a.py", "from kvd.api import backend\nfrom kvd.config import Config\n"),
        ("cli/kvctl/a.py", "import httpx\nfrom kvctl import b\n"),
    ],
)
def test_what_keeps_the_rules_is_not_mentioned(lint, capsys, tmp_path, name, text):
    assert said(lint, capsys, tmp_path, name, text) == ""
