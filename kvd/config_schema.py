"""The configuration file: its tables, keys, types, defaults and what each key is for.

This is the one place where they are written; the parser, its hints and ``kvd --print-config`` read it from here.
"""

import difflib
import json
import re
import textwrap
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from kvd.errors import ConfigError

LINE_CHARS = 100
_CLOSE_ENOUGH = 0.5


class DaemonTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Table ``[daemon]``."""

    mount: Annotated[str, Meta(description="Where the cache is mounted: an empty directory.")] = "/mnt/kvd"
    state: Annotated[str, Meta(description="The catalogue and the lock of this daemon.")] = "/var/lib/kvd"
    socket: Annotated[str, Meta(description="The control socket, which kvctl speaks to.")] = "/run/kvd/kvd.sock"
    socket_group: Annotated[str, Meta(description='Who may use the socket besides root; "" for nobody.')] = "kvd"
    device: Annotated[
        str,
        Meta(
            description='Where the page-table engine runs: "in-process", "vfio-user:/path.sock" (a card in another '
            'process, such as kvd-card) or "vfio:0000:01:00.0" (a card in that slot, bound by kvctl device bind).'
        ),
    ] = "in-process"
    flush: Annotated[str, Meta(description="How long a stop may take to copy unsaved objects to NVMe.")] = "5min"


HOT_NAMES = 1 << 21
"""Twice as many as there can be objects."""


class FuseTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Table ``[fuse]``."""

    passthrough: Annotated[
        str,
        Meta(description='"auto": the kernel reads and writes DDR files itself where it can; "off": kvd does.'),
    ] = "auto"
    allow_other: Annotated[bool, Meta(description="Let users other than kvd's own in (file modes still count).")] = True
    readers: Annotated[int, Meta(description="Threads that serve the mount, 1 to 64.")] = 4
    write_wait: Annotated[
        str,
        Meta(description="How long a writer waits for room in DDR before it gets ENOSPC."),
    ] = "10s"
    read_wait: Annotated[
        str,
        Meta(description="How long a read of a large object waits for its pages to come from NVMe before it gets EIO."),
    ] = "30s"
    hot_names: Annotated[
        int,
        Meta(description="Names that are answered without Python, some 180 bytes of memory each; 0: none."),
    ] = HOT_NAMES


class DdrTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Table ``[ddr]``."""

    path: Annotated[str, Meta(description="Where kvd mounts its private tmpfs.")] = "/run/kvd/ddr"
    budget: Annotated[
        str | int,
        Meta(
            description="How much memory the cache may hold: a size (KiB, MiB, GiB, TiB, or decimal KB, MB, GB, TB; "
            "a plain number is bytes) or a share of the memory that kvd can use (RAM or the cgroup's limit)."
        ),
    ] = "25%"
    burst: Annotated[
        str | int,
        Meta(description="Room beyond the budget for writers that are ahead of the mover: a share of it, or a size."),
    ] = "12.5%"
    warm: Annotated[
        str,
        Meta(
            description='"start": touch the memory of the budget once, in the background, so that no writer is the first to '
            '(slow in a virtual machine); "off": memory is taken when it is needed.'
        ),
    ] = "off"
    spare: Annotated[
        str,
        Meta(
            description='"on": the memory of objects that leave is kept, within the budget, for those that come next; '
            '"auto": where the host of a virtual machine would take it; "off": it is free at once.'
        ),
    ] = "auto"
    high_watermark: Annotated[
        float,
        Meta(description="Objects move to NVMe when more than this part of the budget is used ..."),
    ] = 0.90
    low_watermark: Annotated[float, Meta(description="... until no more than this part is.")] = 0.75
    idle: Annotated[
        str,
        Meta(
            description="Only objects that nobody used for so long move by the watermarks (ms, s, min, h); need moves others."
        ),
    ] = "60s"


class NvmeTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Table ``[nvme]``."""

    dirs: Annotated[tuple[str, ...], Meta(description="Directories on ext4 or XFS, one a drive.")] = (
        "/var/lib/kvd/nvme",
    )
    capacity: Annotated[
        str | int,
        Meta(description='How much kvd may store in all of them: a size, or "auto" for what is free.'),
    ] = "auto"
    reserve: Annotated[str | int, Meta(description="What is left free on each of their file systems.")] = "1GiB"
    direct: Annotated[
        str,
        Meta(description='"auto": O_DIRECT where the file system has it; "off": through the page cache.'),
    ] = "auto"
    deadline: Annotated[
        str,
        Meta(
            description="A request to a directory that takes longer has failed, and the directory is offline: it gets no new "
            "objects, what is there is an I/O error at once. A whole transfer gets ten times as long."
        ),
    ] = "30s"
    on_full: Annotated[
        str,
        Meta(
            description='"evict": what is worth least there is removed, a miss; "refuse": no space left; '
            '"block": who wants bytes on NVMe waits for [fuse] write_wait.'
        ),
    ] = "evict"
    probe: Annotated[
        str,
        Meta(description="How often a directory that is offline is tried; it comes back by itself."),
    ] = "5s"


class AgeingTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Table ``[ageing]``."""

    policy: Annotated[
        str,
        Meta(
            description='Who leaves a tier first: "default" learns it from what happens, the others are plain orders; '
            "kvctl replay compares them."
        ),
    ] = "default"
    reuse_min: Annotated[
        float,
        Meta(
            description="An object that leaves DDR and is less likely than this to be used again is dropped instead of "
            "written to NVMe; 0: none is."
        ),
    ] = 0.0


class AdmissionTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Table ``[admission]``."""

    admit: Annotated[
        str,
        Meta(
            description='What may go to NVMe, outside namespaces and by default in them: "all"; or "reused": an object that '
            "was never read and whose name was never stored before is dropped when DDR must let it go."
        ),
    ] = "all"
    durability: Annotated[
        str,
        Meta(
            description='"back": objects are written to NVMe when they have to be; "through": right after they are stored.'
        ),
    ] = "back"
    on_fault: Annotated[
        str,
        Meta(
            description='What a quarantined object answers: "eio"; or "miss": its name goes, so that it is stored anew.'
        ),
    ] = "eio"


class ScrubTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Table ``[scrub]``."""

    rate: Annotated[
        str | int,
        Meta(description="How much of NVMe is read a second to verify it, behind everything else; 0: nothing is."),
    ] = "32MiB"
    period: Annotated[
        str,
        Meta(description="Every object on NVMe is verified once in so long (ms, s, min, h, d), if the rate is enough."),
    ] = "7d"


class LogTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Table ``[log]``."""

    level: Annotated[str, Meta(description="debug, info, warning or error.")] = "info"
    format: Annotated[
        str,
        Meta(description='"text", "json", or "auto": JSON lines under systemd, else text.'),
    ] = "auto"


class File(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    daemon: DaemonTable = DaemonTable()
    fuse: FuseTable = FuseTable()
    ddr: DdrTable = DdrTable()
    nvme: NvmeTable = NvmeTable()
    admission: AdmissionTable = AdmissionTable()
    ageing: AgeingTable = AgeingTable()
    scrub: ScrubTable = ScrubTable()
    log: LogTable = LogTable()


TABLES: dict[str, type[Struct]] = {field.name: field.type for field in msgspec.structs.fields(File)}

CHOICES = {
    ("fuse", "passthrough"): ("auto", "off"),
    ("ddr", "warm"): ("off", "start"),
    ("ddr", "spare"): ("auto", "on", "off"),
    ("nvme", "direct"): ("auto", "off"),
    ("nvme", "on_full"): ("evict", "refuse", "block"),
    ("ageing", "policy"): ("default", "lru", "lru-tail", "lfu", "fifo", "s3-fifo", "arc"),
    ("admission", "admit"): ("all", "reused"),
    ("admission", "durability"): ("back", "through"),
    ("admission", "on_fault"): ("eio", "miss"),
    ("log", "level"): ("debug", "info", "warning", "error"),
    ("log", "format"): ("auto", "text", "json"),
}
"""Keys that know only these words."""


def keys_of(table: str) -> tuple[str, ...]:
    """Return the keys of a table, in the order they are printed."""
    return TABLES[table].__struct_fields__


def default_of(table: str, key: str) -> Any:
    """Return a key's default, as the file would hold it."""
    return getattr(TABLES[table](), key)


def fault(table: str, key: str, what: str, mend: str) -> ConfigError:
    """Return the one-line error about a key: what is wrong and what to set."""
    return ConfigError(f"[{table}] {key}: {what}; {mend}")


def assignment(table: str, key: str) -> str:
    """Return ``set key = default``, the mend that always works."""
    return f"set {key} = {_toml(default_of(table, key))}"


def decode(tree: dict[str, Any]) -> File:
    """Check names and types of a parsed TOML document.

    Raises
    ------
    ConfigError
        On an unknown table or key, or a value of the wrong type.
    """
    for table, content in tree.items():
        if table not in TABLES:
            raise ConfigError(f"[{table}]: no such table; {_hint_table(table)}")
        if not isinstance(content, dict):
            raise ConfigError(f"[{table}]: is a table, not a value; write [{table}] on a line of its own")
        for key in content:
            if key not in keys_of(table):
                raise fault(table, key, "no such key", _hint_key(table, key))
    try:
        return msgspec.convert(tree, File, strict=True)
    except msgspec.ValidationError as error:
        raise _type_fault(str(error)) from error


def _hint_table(table: str) -> str:
    owners = [name for name in TABLES if table in keys_of(name)]
    if owners:
        return f"set {table} below [{owners[0]}]"
    near = difflib.get_close_matches(table, TABLES, n=1, cutoff=_CLOSE_ENOUGH)
    return f"set it below [{near[0]}]" if near else f"the tables are {', '.join(TABLES)}"


def _hint_key(table: str, key: str) -> str:
    near = difflib.get_close_matches(key, keys_of(table), n=1, cutoff=_CLOSE_ENOUGH)
    owners = [name for name in TABLES if key in keys_of(name)]
    if owners:
        return f"set it below [{owners[0]}]"
    return f'set "{near[0]}" instead' if near else f"the keys are {', '.join(keys_of(table))}"


def _type_fault(message: str) -> ConfigError:
    """Turn ``Expected `str`, got `int` - at `$.ddr.path``` into a sentence for operators."""
    what, _, where = message.partition(" - at ")
    table, key = re.findall(r"\w+", where)[:2]
    return fault(table, key, what.replace("`", "").lower(), assignment(table, key))


def _toml(value: object) -> str:
    # What JSON and TOML write alike: strings, numbers, true and false, lists of those.
    return json.dumps(value)


def render(file: File) -> str:
    """Return the file with every key, its value and what it is for; the parser accepts it."""
    lines = ["# Configuration of kvd. Every key is shown; what is not set has the value shown by kvd --print-config."]
    for table, struct in TABLES.items():
        lines += ["", f"[{table}]"]
        hints = get_type_hints(struct, include_extras=True)
        for key in keys_of(table):
            meta: Meta = get_args(hints[key])[1]
            lines += textwrap.wrap(meta.description or "", LINE_CHARS, initial_indent="# ", subsequent_indent="# ")
            lines.append(f"{key} = {_toml(getattr(getattr(file, table), key))}")
    return "\n".join(lines) + "\n"
