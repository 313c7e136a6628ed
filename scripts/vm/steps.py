"""The guest's list of steps, read by the host."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vm.error import BedError

if TYPE_CHECKING:
    from pathlib import Path

LIST = "tests/vm/guest/steps.py"
COLLECT_S_MAX = 120.0
OUTPUT_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step as the list has it."""

    name: str
    command: tuple[str, ...]
    timeout_s: float


def read(root: Path) -> list[Step]:
    """Return the steps of the checkout at `root`."""
    spec = importlib.util.spec_from_file_location("vm_guest_steps", root / LIST)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return [Step(name=step.name, command=step.command, timeout_s=step.timeout_s) for step in module.STEPS]


def collect(root: Path, steps: list[Step], compiled: Path) -> None:
    """Let pytest find the tests of the steps here, before a guest is started.

    It tells a mistake within seconds, and it leaves behind what pytest compiles for itself (all of its plug-ins and of the
    tests): in the guest that alone would take 10 s.

    Parameters
    ----------
    root
        The checkout.
    steps
        Those whose command is not pytest are passed over.
    compiled
        A Python cache prefix (``PYTHONPYCACHEPREFIX``) for the compiled modules.

    Raises
    ------
    BedError
        A step's tests cannot be found.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"KVD_VM_GUEST": "1", "PYTHONPYCACHEPREFIX": str(compiled)}
    for step in steps:
        if step.command[0] != "pytest":
            continue
        # -P: not the sources in the current folder but what is installed, as in the guest.
        command = [sys.executable, "-P", "-m", *step.command, "--collect-only", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=COLLECT_S_MAX,
        )
        if done.returncode:
            tail = "\n".join(done.stdout.splitlines()[-OUTPUT_LINES:])
            raise BedError(f"the tests of step {step.name} cannot be collected\n{tail}", f"see {LIST}")
