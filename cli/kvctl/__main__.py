"""``kvctl``: the command line."""

from __future__ import annotations

import os
import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run one command, and end as a program at a shell should: no traceback at Ctrl-C or at a closed pipe."""
    try:
        from kvctl.commands import run  # noqa: PLC0415  so that Ctrl-C while Python is still importing is quiet too

        status = run(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("kvctl: interrupted\n")
        status = EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader, such as head(1), has what it wanted; Python must not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)


if __name__ == "__main__":
    main()
