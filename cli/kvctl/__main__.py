"""``kvctl``: the command line."""

from __future__ import annotations

import os
import sys

EXIT_FAILED = 1
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
        # The reader, such as head(1), has what it wanted.
        status = _give_up_output(0)
    except OSError as error:
        sys.stderr.write(f"kvctl: can't write: {error.strerror}\n")
        status = _give_up_output(EXIT_FAILED)
    sys.exit(status)


def _give_up_output(status: int) -> int:
    """Keep Python from trying again at exit to write what is still buffered."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


if __name__ == "__main__":
    main()
