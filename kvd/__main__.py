"""``kvd``: the daemon's command line."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path  # noqa: TC003 (cyclopts reads annotations when it runs)
from typing import TYPE_CHECKING, Annotated

import cyclopts
from cyclopts import Parameter

from kvd import config, config_check, config_schema, log, mountinfo
from kvd.errors import ConfigError, ExitCode, KvdError

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = log.get(__name__)

INTERRUPTED = 130
"""What a shell reports for a program that SIGINT ended."""

app = cyclopts.App(
    name="kvd",
    help="Serve a tiered KV cache (DDR and NVMe) as a FUSE mount.",
    version=lambda: metadata.version("kvd"),
    version_flags=["--version"],
    help_flags=["--help", "-h"],
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)


@app.default
def kvd(
    *,
    config_file: Annotated[Path | None, Parameter(name="--config")] = None,
    device: Annotated[str | None, Parameter(show_default=False)] = None,
    check_config: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    print_config: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    fsck: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Serve a tiered KV cache (DDR and NVMe) as a FUSE mount.

    Parameters
    ----------
    config_file
        The configuration; /etc/kvd/kvd.toml where it exists, else the defaults.
    device
        Where the page-table engine runs, in place of [daemon] device: in-process, vfio-user:/path.sock or
        vfio:0000:01:00.0.
    check_config
        Say whether the configuration can be used here, and exit (0, or 78).
    print_config
        Print the default configuration with every key explained, and exit.
    fsck
        Check what a stopped kvd keeps, with every checksum, and exit (0 clean, 1 faults); changes nothing.
    """
    if print_config:
        sys.stdout.write(config_schema.render(config_schema.File()))
        return ExitCode.OK
    loaded = config.load(config_file, device=device)
    if fsck:
        from kvd import fsck as checker  # noqa: PLC0415

        return checker.run(loaded)
    config_check.check(loaded, mountinfo.read())
    if check_config:
        used = config_file or (config.DEFAULT_FILE if config.DEFAULT_FILE.exists() else "defaults")
        sys.stdout.write(f"configuration is fine: {used}\n")
        return ExitCode.OK
    log.setup(loaded.log.level, loaded.log.format)
    config_check.make_directories(loaded)
    # The daemon brings the C extensions with it, which checking a configuration does not need.
    from kvd import daemon  # noqa: PLC0415

    return daemon.run(loaded)


def single(error: BaseException) -> BaseException:
    """Return what a group of errors comes down to: the operator's problem or the interrupt, if it holds only those."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = [single(each) for each in error.exceptions]
    if all(isinstance(each, KvdError | KeyboardInterrupt) for each in inner):
        # Why it ended says more than that somebody then pressed Ctrl-C.
        return next((each for each in inner if isinstance(each, KvdError)), inner[0])
    return error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: of this process); return the exit status."""
    try:
        return int(app(arguments, exit_on_error=False, print_error=False) or ExitCode.OK)
    except cyclopts.UnusedCliTokensError as error:
        words = " ".join(error.unused_tokens or ())
        return _report(ConfigError(f"there is nothing to say to kvd but options, so not {words!r}; see kvd --help"))
    except cyclopts.CycloptsError as error:
        return _report(ConfigError(f"{' '.join(str(error).split()).rstrip('.')}; see kvd --help"))
    except (Exception, BaseExceptionGroup, KeyboardInterrupt) as error:
        match single(error):
            case KeyboardInterrupt():
                return INTERRUPTED
            case KvdError() as problem:
                return _report(problem)
            case _:
                logger.exception("kvd ended by an error of its own")
                return ExitCode.SOFTWARE


def _report(problem: KvdError) -> int:
    sys.stderr.write(f"kvd: {log.printable(str(problem))}\n")
    return problem.exit_code


if __name__ == "__main__":
    sys.exit(main())
