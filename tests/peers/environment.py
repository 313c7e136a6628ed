"""The peers' own Python environment, outside of kvd's: CPU builds, pinned (requirements/peers)."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements/peers"
DRIVER = Path(__file__).with_name("driver.py")
INSTALL_S = 1800
CHECK_S = 300
REASON_CHARS = 300
SYSTEM_PACKAGES = {"mooncake": {"ibverbs": "libibverbs1", "rdmacm": "librdmacm1", "numa": "libnuma1"}}
"""Shared libraries, and the packages that bring them."""
LIBRARIES = "lib/python*/site-packages/nvidia/cuda_runtime/lib"


class CanNotInstallError(Exception):
    """A peer can't be had here; the message is the reason."""


class Environment:
    """A virtual environment in a folder of its own.

    Parameters
    ----------
    folder
        Where it is, or will be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self._folder / "bin/python"

    def variables(self) -> dict[str, str]:
        """Return the environment variables of a driver."""
        libraries = [str(path) for path in self._folder.glob(LIBRARIES)]
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries), "PYTHONWARNINGS": "ignore"}

    def install(self, project: str, module: str) -> None:
        """Install a project, unless that has been done, and see whether its driver can be imported.

        Raises
        ------
        CanNotInstallError
            With the reason.
        """
        wanted = "".join((REQUIREMENTS / f"{name}.txt").read_text() for name in ("base", project))
        stamp = self._folder / f".{project}"
        if not stamp.exists() or stamp.read_text() != wanted:
            if not self.python.exists():
                _run([sys.executable, "-m", "venv", str(self._folder)])
            _system_packages(project)
            pip = [str(self.python), "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
            for name in ("base", project):
                _run([*pip, "-r", str(REQUIREMENTS / f"{name}.txt")])
        _run([str(self.python), "-c", f"import {module}"], cwd=DRIVER.parent, env=self.variables(), wait_s=CHECK_S)
        stamp.write_text(wanted)


def _system_packages(project: str) -> None:
    packages = SYSTEM_PACKAGES.get(project, {})
    missing = [package for library, package in packages.items() if ctypes.util.find_library(library) is None]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        _run(["apt-get", "-qq", "update"], env=quiet)
        _run(["apt-get", "-qq", "install", "-y", "--no-install-recommends", *missing], env=quiet)


def _run(
    command: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None, wait_s: float = INSTALL_S
) -> None:
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=wait_s, cwd=cwd, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CanNotInstallError(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"status {done.returncode}"]
        raise CanNotInstallError(lines[-1][:REASON_CHARS])
