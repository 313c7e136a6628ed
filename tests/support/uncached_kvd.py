"""kvd whose kernel keeps neither names nor attributes, so that each is asked for. Usage: uncached_kvd.py HOW KVD ARGUMENT...

HOW is ``sound``, or ``unsound``: then the hot table is not told before something changes.
"""

from __future__ import annotations

import sys

import kvd.fs.attributes

kvd.fs.attributes.CACHE_S = 0.0

from kvd.__main__ import main  # noqa: E402 - what it imports takes the value above
from kvd.fs.hot import Hot  # noqa: E402

if __name__ == "__main__":
    if sys.argv[1] == "unsound":
        Hot.inode_changing = lambda *_: None  # type: ignore[method-assign]
    del sys.argv[:2]
    sys.exit(main())
