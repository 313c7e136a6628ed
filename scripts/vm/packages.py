"""Debian packages of another release than the machine's, fetched by apt with its own folders and checked by it.

Trust comes from the machine's package debian-archive-keyring: apt takes an index only if it is signed by a key of that
file, and a package only if it has the hash that the index says. Nothing is installed on the machine.
"""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from vm.error import BedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
INDEX_S_MAX = 180.0
DOWNLOAD_S_MAX = 600.0
PROGRESS_S = 5.0
RETRIES = 3
OUTPUT_LINES = 12
"""As much of apt's output as an error shows."""

_PLANNED = re.compile(r"^'[^']*' (?P<file>\S+) (?P<bytes>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package file that apt would fetch; its name has name, version and architecture in it."""

    file: str
    size_bytes: int

    @property
    def name(self) -> str:
        """The package's name."""
        return self.file.partition("_")[0]


class Apt:
    """An apt that sees only the suites it is given, an empty machine, and folders below `root`.

    Parameters
    ----------
    root
        A folder for its indexes and packages; made if it is not there.
    mirror
        The archive's address.
    suites
        Releases to take packages from, the main one first.
    say
        Gets a line of progress now and then.
    """

    def __init__(self, root: Path, mirror: str, suites: Sequence[str], say: Callable[[str], object]) -> None:
        if not KEYRING.is_file():
            raise BedError(f"{KEYRING} is not there", "install the package debian-archive-keyring")
        for program in ("apt-get", "dpkg-deb", "xz"):
            if shutil.which(program) is None:
                raise BedError(
                    f"the program {program} is not there", "vm-test needs a machine with Debian's apt and xz"
                )
        self._say = say
        self.archives = root / "archives"
        (self.archives / "partial").mkdir(parents=True, exist_ok=True)
        (root / "lists/partial").mkdir(parents=True, exist_ok=True)
        (root / "status").write_text("")
        lines = [f"deb [signed-by={KEYRING}] {mirror} {suite} main\n" for suite in suites]
        (root / "sources.list").write_text("".join(lines))
        self._configuration = root / "apt.conf"
        self._configuration.write_text(_configuration(root))

    def update(self) -> None:
        """Fetch the indexes and check their signatures."""
        self._run(["update"], seconds_max=INDEX_S_MAX)

    def plan(self, packages: Sequence[str], *, release: str) -> list[Package]:
        """Return what a machine with nothing on it would need for `packages`, all in all."""
        options = ["-t", release, "--print-uris", "-qq", "-y", "install", *packages]
        # apt leaves out what it has already, so it is asked about an empty folder.
        empty = self.archives.with_name("no-archives")
        (empty / "partial").mkdir(parents=True, exist_ok=True)
        output = self._run(["-o", f"Dir::Cache::archives={empty}", *options], seconds_max=INDEX_S_MAX)
        found = [match for line in output.splitlines() if (match := _PLANNED.match(line))]
        return [
            Package(file=unquote(match["file"], errors="strict"), size_bytes=int(match["bytes"])) for match in found
        ]

    def download(self, packages: Sequence[Package]) -> list[Path]:
        """Fetch exactly these packages and return their files, in the same order."""
        # All of them each time: what lies here from a run that broke off was perhaps never checked.
        for path in self.archives.glob("*.deb"):
            path.unlink()
        self._run(
            ["-qq", "download", *(_named(package) for package in packages)],
            seconds_max=DOWNLOAD_S_MAX,
            cwd=self.archives,
            total_bytes=sum(package.size_bytes for package in packages),
        )
        files = {_plain(path.name): path for path in self.archives.glob("*.deb")}
        if lost := [package.file for package in packages if package.file not in files]:
            raise BedError(f"apt-get did not fetch {', '.join(lost)}", "run it again: the mirror may just be changing")
        return [files[package.file] for package in packages]

    def _run(
        self, arguments: Sequence[str], *, seconds_max: float, cwd: Path | None = None, total_bytes: int = 0
    ) -> str:
        command = ["apt-get", f"-c={self._configuration}", *arguments]
        deadline = time.monotonic() + seconds_max
        with subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            while True:
                try:
                    output, _ = process.communicate(timeout=PROGRESS_S)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() > deadline:
                        process.kill()
                        raise BedError(
                            f"apt-get {arguments[-1]} took more than {seconds_max:.0f} s",
                            "the mirror is slow or gone; run it again",
                        ) from None
                    if total_bytes:
                        here = sum(path.stat().st_size for path in self.archives.rglob("*") if path.is_file())
                        self._say(f"fetched {here >> 20} of {total_bytes >> 20} MiB")
        if process.returncode:
            raise _failure(output)
        return output


def _failure(output: str) -> BedError:
    """Say what a failure of apt-get means."""
    tail = "\n".join(output.splitlines()[-OUTPUT_LINES:])
    if "No space left" in output:
        return BedError(f"the disk is full\n{tail}", "make room, or put the checkout elsewhere")
    if "NO_PUBKEY" in output or "is not signed" in output:
        return BedError(
            f"an index is not signed by a key of {KEYRING}\n{tail}",
            "install a newer debian-archive-keyring; if it is new, do not trust the mirror",
        )
    if "does not have a Release file" in output or "Unable to locate package" in output:
        return BedError(
            f"the archive in the machine's apt sources lacks what vm-test needs\n{tail}",
            "name a mirror of Debian that has trixie and trixie-backports",
        )
    if "Failed to fetch" in output or "resolve" in output or "connect" in output:
        return BedError(f"the mirror cannot be reached\n{tail}", "vm-test needs a network once; see that apt-get works")
    return BedError(f"apt-get failed\n{tail}", "see what it says")


def _configuration(root: Path) -> str:
    settings = {
        "Dir::State": root,
        "Dir::State::status": root / "status",
        "Dir::State::lists": root / "lists",
        "Dir::Cache": root,
        "Dir::Cache::archives": root / "archives",
        "Dir::Etc::sourcelist": root / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Architecture": "amd64",
        "APT::Architectures": "amd64",
        "APT::Install-Recommends": "false",
        # As root apt changes to a user that may not write here.
        "APT::Sandbox::User": getpass.getuser(),
        "APT::Get::AllowUnauthenticated": "false",
        "Acquire::AllowInsecureRepositories": "false",
        # Without it an index that cannot be had is a warning, and the old one is good enough.
        "APT::Update::Error-Mode": "any",
        "Acquire::Languages": "none",
        "Acquire::Retries": RETRIES,
    }
    # Hooks of the machine are about its own packages; the first setting takes the place of a list of the machine.
    cleared = (
        "APT::Architectures",
        "APT::Update::Post-Invoke",
        "APT::Update::Post-Invoke-Success",
        "DPkg::Post-Invoke",
    )
    lines = [f"#clear {name};" for name in cleared]
    lines += [f'{name} "{value}";' for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def _plain(file: str) -> str:
    """Return a package file's name with the colon of an epoch in place of its escape."""
    return unquote(file)


def _named(package: Package) -> str:
    name, version, _ = package.file.split("_", 2)
    return f"{name}={version}"
