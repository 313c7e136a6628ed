"""A bug in a handler costs one request; the mount and what others have open there live on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import support
from support.mounted import start_kvd
from support.posix import tried

BROKEN = str(Path(support.__path__[0]) / "broken_kvd.py")


def test_a_bug_in_a_handler_is_eio_for_one_request():
    with start_kvd(prefix=(sys.executable, BROKEN)) as running:
        running.claim("request failed")
        root = running.root
        (root / "before").write_bytes(b"x" * 5000)
        fd = os.open(root / "before", os.O_RDWR)
        assert tried(os.stat, root / "bug") == "EIO"
        assert tried(os.mkdir, root / "bug") == "EIO"
        assert tried(os.open, root / "bug", os.O_CREAT | os.O_RDWR) == "EIO"
        assert tried(os.rename, root / "before", root / "bug") == "EIO"
        assert tried(os.setxattr, root / "before", "user.a", b"bug") == "EIO"
        assert os.pwrite(fd, b"y", 0) == 1
        assert os.pread(fd, 2, 0) == b"yx"
        os.close(fd)
        os.setxattr(root / "before", "user.a", b"fine")
        os.rename(root / "before", root / "after")
        assert os.listdir(root) == ["after"]
        lines = [line for line in running.kvd.log.read_text().splitlines() if "request failed" in line]
        assert len(lines) == 5
        assert all("a bug in" in line for line in lines)
