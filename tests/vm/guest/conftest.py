"""These tests run in the virtual machine of `make vm-test` and nowhere else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

IN_GUEST = "KVD_VM_GUEST" in os.environ
collect_ignore_glob = [] if IN_GUEST else ["test_*.py"]
if IN_GUEST:
    sys.path.insert(0, str(Path(__file__).parent))
