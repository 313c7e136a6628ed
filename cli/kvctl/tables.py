"""What people see: the daemon's documents as tables."""

from __future__ import annotations

import stat as stat_module
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from kvctl import units
from kvctl.names import show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

_STYLES: Final = {
    "ok": "green",
    "degraded": "yellow",
    "online": "green",
    "suspect": "yellow",
    "offline": "red",
    "probing": "red",
    "faulted": "red",
    "filling": "cyan",
    "ddr": "green",
    "nvme": "blue",
}


def _word(word: str | None) -> Text:
    return Text(word or "-", _STYLES.get(word or "", ""))


def _table(*columns: str, right: str = "") -> Table:
    """Make a table without lines; the columns named in `right` hold numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right.split() else "left", no_wrap=True)
    return table


def _pairs(rows: Iterator[tuple[str, Text]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(Text(label), text)
    return table


def tiers(found: list[dict[str, Any]]) -> Table:
    """Lay out the books of the tiers."""
    table = _table(
        "TIER", "USED", "RESERVED", "FREE", "BUDGET", "CAPACITY", "USE", "OBJECTS", "PATH",
        right="USED RESERVED FREE BUDGET CAPACITY USE OBJECTS",
    )  # fmt: skip
    for tier in found:
        taken = tier["used_bytes"] + tier["reserved_bytes"]
        table.add_row(
            _word(tier["tier"]),
            units.size(tier["used_bytes"]),
            units.size(tier["reserved_bytes"]),
            units.size(max(0, tier["budget_bytes"] - taken)),
            units.size(tier["budget_bytes"]),
            units.size(tier["capacity_bytes"]),
            units.share(taken, tier["budget_bytes"]),
            str(tier["objects"]),
            Text(show(tier["path"])),
        )
    return table


def status(found: dict[str, Any]) -> list[RenderableType]:
    """Lay out the daemon at a glance."""
    title = Text.assemble(
        f"kvd {found['version']} serves {show(found['mount'])}: ", (found["state"], _STYLES.get(found["state"], "red"))
    )
    parts: list[RenderableType] = [title, _pairs(_status_rows(found)), Text(""), tiers(found["tiers"])]
    if found["namespaces"]["alarms"]:
        parts += [Text(""), Text("Wrong fingerprints", "bold red"), _alarms(found["namespaces"]["alarms"])]
    if found["faults"]:
        parts += [Text(""), Text("Faults", "bold red"), _faults(found["faults"])]
    return parts


def _status_rows(found: dict[str, Any]) -> Iterator[tuple[str, Text]]:
    for reason in found["reasons"]:
        yield "because", Text(show(reason), "yellow")
    yield "up", Text(f"{units.age(found['uptime_s'])}, process {found['pid']}, kernel {found['kernel']}")
    yield "engine", engine(found["engine"])
    yield (
        "objects",
        Text(
            f"{found['objects']}: {found['leased']} leased, {found['pinned']} pinned, {found['dirty']} not yet on NVMe"
        ),
    )
    if found["index"]["state"] != "checked":
        yield (
            "index",
            Text(f"being checked: {found['index']['done']} of {found['index']['total']} objects on NVMe", "yellow"),
        )
    moved = f"{units.size(found['promoted_bytes'])} promoted, {units.size(found['demoted_bytes'])} demoted"
    yield "moved", Text(moved)
    yield from _namespace_rows(found["namespaces"], found["admission"])
    if any(found["sessions"]["states"].values()):
        yield "sessions", Text(_sessions(found["sessions"]))
    yield "scrub", scrub(found["scrub"])
    for each in found["directories"]:
        yield "directory", directory(each)
    yield "features", Text(", ".join(found["features"]) or "none")
    for off in found["features_off"]:
        yield "without", Text(f"{off['feature']}: {show(off['reason'])}")


def _sessions(found: dict[str, Any]) -> str:
    states = ", ".join(f"{count} {state}" for state, count in found["states"].items() if count)
    return f"{states} in memory; {units.plural(found['leases'], 'lease')}, {found['expired']} expired"


def _namespace_rows(found: dict[str, Any], admission: dict[str, Any]) -> Iterator[tuple[str, Text]]:
    if found["namespaces"]:
        offered = units.plural(found["mismatches"], "wrong fingerprint")
        yield "namespaces", Text(f"{found['namespaces']}: {offered} offered")
    if found["deleting"]:
        left = units.plural(found["names_left"], "name")
        yield "deleting", Text(f"{left} of invalidated content left, {found['names_deleted']} gone")
    if admission["dropped"] or admission["through"]:
        dropped = f"{admission['dropped']} dropped ({units.size(admission['saved_bytes'])} not written)"
        written = f"{admission['admitted']} written, {admission['through']} at once"
        yield "admission", Text(f"{dropped}, {written}")
    if admission["evicted"]:
        yield "evicted", Text(f"{admission['evicted']} ({units.size(admission['evicted_bytes'])}) for room on NVMe")


def _alarms(found: list[dict[str, Any]]) -> Table:
    table = _table("WHEN", "NAMESPACE", "WHAT")
    for alarm in found:
        table.add_row(_when(alarm["when_s"]), Text(show(alarm["namespace"])), Text(show(alarm["what"])))
    return table


def namespaces(found: list[dict[str, Any]]) -> Table:
    """Lay out namespaces."""
    table = _table("NAME", "ADMIT", "DURABILITY", "ON FAULT", "MODE", "OWNER", "FINGERPRINT")
    for each in found:
        table.add_row(
            Text(show(each["name"])),
            each["admit"],
            each["durability"],
            each["on_fault"],
            f"{each['mode']:04o}",
            f"{each['uid']}:{each['gid']}",
            Text(fingerprint(each)),
        )
    return table


def namespace(found: dict[str, Any]) -> list[RenderableType]:
    """Lay out one namespace."""
    return [Text(show(found["name"]), "bold"), _pairs(_namespace_facts(found))]


def _namespace_facts(found: dict[str, Any]) -> Iterator[tuple[str, Text]]:
    for key, value in sorted(found["fingerprint"].items()):
        yield f"  {key}", Text(show(value))
    if not found["fingerprint"]:
        yield "  fingerprint", Text("none")
    yield "  admit", Text(found["admit"])
    yield "  durability", Text(found["durability"])
    yield "  on fault", Text(found["on_fault"])
    yield "  session", Text(found["session"])
    yield "  format", Text(found["format"])
    yield "  layout", Text(found["layout"] or "not known")
    yield "  on full", Text(found["on_full"] or "as configured")
    yield from _quota_facts(found["quota"])
    yield "  mode", Text(f"{found['mode']:04o}, owner {found['uid']}:{found['gid']}")
    yield "  made", Text(_when(found["created_s"]))


def _quota_facts(found: dict[str, Any]) -> Iterator[tuple[str, Text]]:
    for tier in ("ddr", "nvme"):
        guaranteed, limit = found[f"{tier}_guaranteed_bytes"], found[f"{tier}_limit_bytes"]
        if guaranteed or limit:
            yield f"  {tier}", Text(f"{units.size(guaranteed)} guaranteed, {_limit(limit)}")
    yield "  priority", Text(str(found["priority"]))


def _limit(limit_bytes: int) -> str:
    return f"at most {units.size(limit_bytes)}" if limit_bytes else "no limit"


def quota(found: dict[str, Any]) -> list[RenderableType]:
    """Lay out how a namespace stands in each tier."""
    table = _table(
        "TIER", "GUARANTEED", "LIMIT", "USED", "BORROWED", "MAY TAKE", "OF",
        right="GUARANTEED LIMIT USED BORROWED OF",
    )  # fmt: skip
    for each in found["tiers"]:
        table.add_row(
            each["tier"],
            units.size(each["guaranteed_bytes"]),
            units.size(each["limit_bytes"]) if each["limit_bytes"] else "-",
            *(units.size(each[f"{name}_bytes"]) for name in ("used", "borrowed", "may_take", "capacity")),
        )
    title = f"{show(found['name'])}: priority {found['priority']}, on full {found['on_full'] or 'as configured'}"
    return [Text(title, "bold"), table]


def fingerprint(found: dict[str, Any]) -> str:
    """Return a namespace's fingerprint in one line."""
    return " ".join(f"{key}={show(value)}" for key, value in sorted(found["fingerprint"].items())) or "-"


def scrub(found: dict[str, Any]) -> Text:
    """Say what the scrubber does and has found."""
    if not found["rate_bytes"]:
        text = Text("off")
    elif found["ended_s"] >= found["began_s"] > 0:
        text = Text(f"everything was read by {_when(found['ended_s'])}")
    else:
        text = Text(f"{units.plural(found['pass_objects'], 'object')} read since {_when(found['began_s'])}")
    text.append(f"; {units.size(found['verified_bytes'])} verified since the start")
    for key, words in (("bad_pages", "bad pages"), ("healed", "healed"), ("quarantined", "quarantined")):
        if found[key]:
            text.append(f", {found[key]} {words}", "red")
    return text


def directory(found: dict[str, Any]) -> Text:
    """Say how an NVMe directory is, since when and why."""
    text = Text.assemble(f"{show(found['path'])}: ", (found["state"], _STYLES.get(found["state"], "")))
    if found["reason"]:
        text.append(f" since {_when(found['since_s'])}: {show(found['reason'])}", "yellow")
    else:
        text.append(f", {units.size(found['free_bytes'])} free{'' if found['direct'] else ', without O_DIRECT'}")
    return text


def engine(found: dict[str, Any]) -> Text:
    """Say where the engine runs, why there, and what went wrong with its card."""
    text = Text(show(found["transport"]))
    if found["wanted"] != found["transport"]:
        text.append(f" ({show(found['wanted'])})" if found["state"] == "ok" else f", not {show(found['wanted'])}", "")
    if found["state"] != "ok":
        text.append(f": degraded since {_when(found['since_s'])}", "yellow")
    if found["faults"]:
        faults = ", ".join(f"{count} {show(kind)}" for kind, count in sorted(found["faults"].items()))
        text.append(f"; faults: {faults}; {units.plural(found['replayed'], 'command')} replayed")
    if found["losses"]:
        text.append(f"; lost: {show(found['losses'][-1])}", "red")
    return text


def devices(found: list[dict[str, Any]]) -> Table:
    """Lay out PCI devices."""
    table = _table("SLOT", "ID", "CARD", "NUMA", "GROUP", "DRIVER", "ALSO IN THE GROUP")
    for device in found:
        others = (f"{each['slot']} ({each['driver'] or 'no driver'})" for each in device["neighbours"])
        table.add_row(
            device["slot"],
            f"{device['vendor']:04x}:{device['device']:04x}",
            "yes" if device["card"] else "no",
            _count(device["numa_node"]),
            _count(device["group"]),
            device["driver"] or "-",
            Text(show(", ".join(others))),
        )
    return table


def card(found: dict[str, Any]) -> Table:
    """Lay out what a card says of itself, as people write it."""
    return _pairs((name.removesuffix("_bytes").replace("_", " "), Text(show(told))) for name, told in _card_rows(found))


def _card_rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in found.items():
        match name, value:
            case "memory_bytes", _:
                sizes = zip(("none", "ddr", "card", "nvme", "pool"), value, strict=True)
                yield name, ", ".join(f"{tier} {units.size(size)}" for tier, size in sizes if size) or "-"
            case "page_sizes", _:
                yield name, ", ".join(units.size(size) for size in value)
            case "address_last", _:
                yield name, f"{value:#x}"
            case _, bool():
                yield name, "yes" if value else "no"
            case _, list():
                yield name, ", ".join(each.lower().replace("_", "-") for each in value)
            case _, int() if name.endswith("_bytes_max"):
                yield name.replace("_bytes_max", "_max"), units.size(value)
            case _:
                yield name, str(value) or "-"


def _faults(found: list[dict[str, Any]]) -> Table:
    table = _table("WHEN", "PAGE", "WHAT", "PATH", "WHERE", right="PAGE")
    for fault in found:
        page = "-" if fault["page"] is None else str(fault["page"])
        table.add_row(
            _when(fault["when_s"]),
            page,
            Text(show(fault["what"])),
            Text(show(fault["path"])),
            Text(show(fault["place"] or "-")),
        )
    return table


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def base(entry: dict[str, Any]) -> str:
    """Return an entry's last name, with what `ls -F` appends."""
    name = show(entry["path"].rsplit("/", 1)[-1]) or "/"
    return name + "/" if entry["kind"] == "dir" and name != "/" else name


def listing(entries: list[dict[str, Any]]) -> Table:
    """Lay out a directory."""
    table = _table(
        "MODE", "OWNER", "SIZE", "TIER", "STATE", "NVME", "PIN", "OPENS", "HITS", "IDLE", "NAME",
        right="SIZE OPENS HITS IDLE",
    )  # fmt: skip
    for entry in entries:
        is_file = entry["kind"] == "file"
        table.add_row(
            stat_module.filemode(entry["mode"]),
            f"{entry['uid']}:{entry['gid']}",
            units.size(entry["size_bytes"]) if is_file else "-",
            _word(entry["tier"]),
            _word(entry["state"]),
            _flag(entry["clean"], "clean", "dirty"),
            _flag(entry["pinned"], "pin", ""),
            _count(entry["opens"]),
            _count(entry["hits"]),
            units.age(entry["idle_s"]),
            Text(base(entry), "bold blue" if entry["kind"] == "dir" else ""),
        )
    return table


def _flag(value: bool | None, yes: str, no: str) -> str:
    if value is None:
        return "-"
    return yes if value else no


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def entry(found: dict[str, Any]) -> list[RenderableType]:
    """Lay out one name."""
    return [Text(show(found["path"]), "bold"), _pairs(_entry_rows(found))]


def _entry_rows(found: dict[str, Any]) -> Iterator[tuple[str, Text]]:
    yield "  kind", Text(f"{found['kind']}, inode {found['ino']}")
    yield "  mode", Text(f"{stat_module.filemode(found['mode'])}, owner {found['uid']}:{found['gid']}")
    yield "  written", Text(_when(found["mtime_s"]))
    if found["kind"] != "file":
        return
    stored = f", {units.size(found['stored_bytes'])} stored" if found["stored_bytes"] is not None else ""
    yield "  size", Text(f"{units.size(found['size_bytes'])} ({found['size_bytes']} bytes){stored}")
    yield "  tier", _word(found["tier"])
    yield "  state", _word(found["state"])
    yield "  on NVMe", Text(_flag(found["clean"], "the same bytes", "not yet, or older bytes"))
    if found["tiers"]:
        yield "  tiers", Text(", ".join(f"{units.size(count)} {tier}" for tier, count in found["tiers"].items()))
    yield from _format_rows(found["format"])
    if found["chain"] is not None:
        yield "  chain", Text(f"number {found['chain']}, after {show(found['parent'] or 'nothing')}")
    yield "  pinned", Text(_flag(found["pinned"], "yes", "no"))
    yield "  open", Text(f"{_count(found['opens'])} times" if found["opens"] else "no")
    yield "  hits", Text(_count(found["hits"]))
    yield "  idle", Text(units.age(found["idle_s"]))


def _format_rows(found: dict[str, Any] | None) -> Iterator[tuple[str, Text]]:
    """Say how the copy on NVMe is kept, and what that did to the values."""
    if found is None:
        return
    kept = (
        f"{units.size(found['object_bytes'])} in {units.size(found['file_bytes'])}, {found['ratio']:.2f} times smaller"
    )
    yield "  format", Text(found["format"] if found["format"] == "raw" else f"{found['format']}: {kept}")
    for role, each in sorted(found["errors"].items()):
        error = f"relative L2 {each['relative_l2']:.2g}, at most {each['most']:.2g}, of {_count(each['values'])} values"
        yield f"  error of {role}", Text(error)
