"""Run a Python program without any capability: ``unprivileged.py PROGRAM ARGUMENTS``.

They are given up in this process, which then becomes the program without an exec: an exec by root would bring them
back. The programs that it starts do have them, as the setuid fusermount3 of an ordinary user has. So a daemon without
privileges can be tried also where only root may open /dev/fuse or read the Python that runs the tests.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import struct
import sys

VERSION_3 = 0x20080522
NOTHING = bytes(2 * 3 * 4)
"""Low and high word of what is effective, permitted and inheritable."""


def give_up() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(struct.pack("=Ii", VERSION_3, 0), NOTHING):
        raise OSError(ctypes.get_errno(), "capset")


if __name__ == "__main__":
    give_up()
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
