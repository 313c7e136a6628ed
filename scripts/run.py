"""kvd in the foreground on ./run: for one's own use; Ctrl-C stops it cleanly. ./run/kvd.toml may be edited."""

import contextlib
import os
import sys
from pathlib import Path

TEMPLATE = """\
[daemon]
mount = "{run}/mnt"
state = "{run}/state"
socket = "{run}/kvd.sock"

[ddr]
path = "{ddr}"

[nvme]
dirs = ["{run}/nvme"]
"""


def main() -> None:
    """Make ./run where it is missing and become kvd."""
    run = Path("run").resolve()
    ddr = run / "ddr" if os.geteuid() == 0 else Path(f"/dev/shm/kvd-{os.geteuid()}")  # noqa: S108
    config = run / "kvd.toml"
    for folder in (run, run / "mnt", run / "state", run / "nvme", ddr):
        # Not exist_ok: that would look into the mount of a killed kvd, which answers nobody.
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
    if not config.exists():
        config.write_text(TEMPLATE.format(run=run, ddr=ddr))
    print(f"mount: {run}/mnt\nconfiguration: {config}\nkvctl: .venv/bin/kvctl --socket {run}/kvd.sock status")
    sys.stdout.flush()
    kvd = Path(sys.executable).with_name("kvd")
    os.execv(kvd, [str(kvd), "--config", str(config)])  # noqa: S606


if __name__ == "__main__":
    main()
