"""``kvctl namespace`` and ``kvctl invalidate``: top directories with a policy and a fingerprint."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from kvctl import tables, units
from kvctl.exits import Exit, UsageError
from kvctl.names import to_wire
from kvctl.run import Run
from kvd import config_units

if TYPE_CHECKING:
    from collections.abc import Sequence

OCTAL = 8

app = App(
    name="namespace",
    help="""Top directories with a policy, and a fingerprint of the model whose KV they hold.

A fingerprint is a set of free keys (model, weights, dtype, layout, tp, ...): give --fingerprint once for each key.
""",
    help_format="markdown",
    version_flags=[],
)

Context = Annotated[Run, Parameter(parse=False)]
Name = Annotated[str, Parameter(name="NAME")]
Pairs = Annotated[tuple[str, ...], Parameter(name="--fingerprint", negative="", show_default=False)]
Admit = Annotated[Literal["all", "reused"] | None, Parameter(show_default=False)]
Durability = Annotated[Literal["back", "through"] | None, Parameter(show_default=False)]
Grouping = Annotated[Literal["file", "directory"] | None, Parameter(name="--session", show_default=False)]
Format = Annotated[str | None, Parameter(show_default=False)]
Layout = Annotated[str | None, Parameter(show_default=False)]
OnFault = Annotated[Literal["eio", "miss"] | None, Parameter(name="--on-fault", show_default=False)]
OnFull = Annotated[Literal["evict", "refuse", "block"] | None, Parameter(name="--on-full", show_default=False)]
Size = Annotated[str | None, Parameter(show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What a namespace is guaranteed and may have; sizes such as 10GiB.

    Parameters
    ----------
    ddr_guaranteed
        Of DDR, what no other namespace takes from it; 0 for nothing.
    ddr_limit
        Of DDR, the most that it has; 0 for no limit.
    nvme_guaranteed
        The same on NVMe.
    nvme_limit
        The same on NVMe.
    priority
        0 to 255: of those who have more than their guarantee the lowest gives back first.
    on_full
        What a full NVMe tier means for its writers: the least useful is evicted, they are refused, or they wait. Else as the
        configuration says.
    """

    ddr_guaranteed: Size = None
    ddr_limit: Size = None
    nvme_guaranteed: Size = None
    nvme_limit: Size = None
    priority: Annotated[int | None, Parameter(show_default=False)] = None
    on_full: OnFull = None

    def given(self) -> dict[str, object]:
        """Return what of it was said, as the API has it."""
        sizes = {name: getattr(self, name) for name in ("ddr_guaranteed", "ddr_limit", "nvme_guaranteed", "nvme_limit")}
        quota: dict[str, object] = {
            f"{name}_bytes": _size(name, text) for name, text in sizes.items() if text is not None
        }
        if self.priority is not None:
            quota["priority"] = self.priority
        found: dict[str, object] = {} if self.on_full is None else {"on_full": self.on_full}
        return found | ({"quota": quota} if quota else {})


def _size(name: str, text: str) -> int:
    try:
        return config_units.parse_size(text)
    except ValueError as error:
        raise UsageError(f"--{name.replace('_', '-')} {text}: {error}") from None


@app.command
def create(  # noqa: PLR0913  (one for each option)
    name: Name,
    /,
    *,
    fingerprint: Pairs = (),
    admit: Admit = None,
    durability: Durability = None,
    on_fault: OnFault = None,
    session: Grouping = None,
    format: Format = None,  # noqa: A002  (the option's name)
    layout: Layout = None,
    shares: Shares = Shares(),
    mode: str = "0755",
    owner: Annotated[str, Parameter(show_default=False)] = "",
    ctl: Context,
) -> int:
    """Make a namespace, and its directory if there is none.

    Parameters
    ----------
    name
        Of the top directory.
    fingerprint
        KEY=VALUE; once for each key.
    admit
        What may go to NVMe: all; or only what was reused. Else as [admission] in the configuration.
    durability
        Written to NVMe when it has to be (back), or right after it is stored (through). Else as [admission].
    on_fault
        What a quarantined object answers: eio; or miss: its name goes. Else as [admission].
    session
        What a session is: a file; or a directory right below the namespace.
    format
        How bytes are kept on NVMe: raw; zstd (bit-exact); or lossy: fp8-e4m3, fp8-e5m2, int8, int4, of K/V, from an age on, such
        as int8/fp8-e4m3,int4@7d.
    layout
        What files hold that do not say so themselves, such as "fp16 layers=32 kv=2 tokens heads=8 dim=128"; "" for nothing.
    mode
        Of a new directory, octal.
    owner
        Of a new directory: USER, USER:GROUP or numbers; else who calls kvctl.
    """
    uid, gid = _owner(owner)
    body = {
        "name": _wire(name),
        "fingerprint": _fingerprint(fingerprint),
        "mode": _mode(mode),
        "uid": uid,
        "gid": gid,
        **_policies(admit, durability, on_fault, session, format, layout),
        **shares.given(),
    }
    return _show(ctl, ctl.client.post("namespace/create", body))


@app.command(name="list")
def list_(*, ctl: Context) -> int:
    """List the namespaces."""
    found = ctl.client.get("namespaces")
    if ctl.as_json:
        ctl.document(found)
    elif found["namespaces"]:
        ctl.show(tables.namespaces(found["namespaces"]))
    return Exit.OK


@app.command
def show(name: Name, /, *, ctl: Context) -> int:
    """Show a namespace.

    Parameters
    ----------
    name
        Of the top directory.
    """
    return _show(ctl, ctl.client.get("namespace", _path(name)))


@app.command(name="set")
def set_(  # noqa: PLR0913  (one for each option)
    name: Name,
    /,
    *,
    admit: Admit = None,
    durability: Durability = None,
    on_fault: OnFault = None,
    session: Grouping = None,
    format: Format = None,  # noqa: A002  (the option's name)
    layout: Layout = None,
    shares: Shares = Shares(),
    ctl: Context,
) -> int:
    """Change the policies of a namespace; the fingerprint only changes with kvctl invalidate.

    Parameters
    ----------
    name
        Of the top directory.
    admit
        What may go to NVMe: all; or only what was reused.
    durability
        Written to NVMe when it has to be (back), or right after it is stored (through).
    on_fault
        What a quarantined object answers: eio; or miss: its name goes.
    session
        What a session is: a file; or a directory right below the namespace.
    format
        How bytes are kept on NVMe: raw; zstd (bit-exact); or lossy: fp8-e4m3, fp8-e5m2, int8, int4, of K/V, from an age on, such
        as int8/fp8-e4m3,int4@7d.
    layout
        What files hold that do not say so themselves, such as "fp16 layers=32 kv=2 tokens heads=8 dim=128"; "" for nothing.
    """
    policies = _policies(admit, durability, on_fault, session, format, layout) | shares.given()
    if not policies:
        raise UsageError("nothing to change: give --admit, --durability, --ddr-limit or another option")
    return _show(ctl, ctl.client.post("namespace/set", {"name": _wire(name), **policies}))


@app.command
def quota(name: Name, /, *, ctl: Context) -> int:
    """Show what a namespace is guaranteed, may have, and has in each tier.

    Parameters
    ----------
    name
        Of the top directory.
    """
    found = ctl.client.get("namespace/quota", _path(name))
    if ctl.as_json:
        ctl.document(found)
    else:
        ctl.show(*tables.quota(found))
    return Exit.OK


@app.command
def attach(name: Name, /, *, fingerprint: Pairs = (), ctl: Context) -> int:
    """Compare a fingerprint with the namespace's; exit status 8 if any key differs or is missing on one side.

    A start script of an engine asks this before it reads KV from the namespace. A refusal is an alarm in the daemon's log,
    its status and its metrics.

    Parameters
    ----------
    name
        Of the top directory.
    fingerprint
        KEY=VALUE; once for each key.
    """
    body: dict[str, object] = {"name": _wire(name), "fingerprint": _fingerprint(fingerprint)}
    return _show(ctl, ctl.client.post("namespace/attach", body))


@app.command
def remove(
    name: Name,
    /,
    *,
    force: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    ctl: Context,
) -> int:
    """Remove a namespace and its directory.

    Parameters
    ----------
    name
        Of the top directory.
    force
        Also with content, which vanishes at once.
    """
    found = ctl.client.post("namespace/remove", {"name": _wire(name), "force": force})
    if ctl.as_json:
        ctl.document(found)
    else:
        ctl.show(f"removed {name} with {units.plural(found['names'], 'name')}")
    return Exit.OK


def invalidate(
    *,
    namespace: str,
    fingerprint: Pairs = (),
    if_fingerprint: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    ctl: Context,
) -> int:
    """Make all content of a namespace vanish at once. What is open stays readable; space is freed in the background.

    Parameters
    ----------
    namespace
        Of which.
    fingerprint
        The new fingerprint, KEY=VALUE once for each key; else the present one stays.
    if_fingerprint
        Only if this is the present one, KEY=VALUE once for each key; else exit status 8.
    """
    body: dict[str, object] = {"name": _wire(namespace)}
    if fingerprint:
        body["fingerprint"] = _fingerprint(fingerprint)
    if if_fingerprint:
        body["if_fingerprint"] = _fingerprint(if_fingerprint)
    found = ctl.client.post("invalidate", body)
    if ctl.as_json:
        ctl.document(found)
    else:
        gone = units.plural(found["names"], "name")
        ctl.show(f"invalidated {namespace}: {gone} gone; fingerprint {tables.fingerprint(found['namespace'])}")
    return Exit.OK


def _show(ctl: Run, found: dict[str, Any]) -> int:
    if ctl.as_json:
        ctl.document(found)
    else:
        ctl.show(*tables.namespace(found))
    return Exit.OK


def _wire(name: str) -> str:
    return to_wire(os.fsencode(name))


def _path(name: str) -> bytes:
    return b"/" + os.fsencode(name).strip(b"/")


def _policies(
    admit: str | None,
    durability: str | None,
    on_fault: str | None,
    session: str | None,
    format_: str | None,
    layout: str | None,
) -> dict[str, object]:
    given = {
        "admit": admit,
        "durability": durability,
        "on_fault": on_fault,
        "session": session,
        "format": format_,
        "layout": layout,
    }
    return {policy: word for policy, word in given.items() if word is not None}


def _fingerprint(pairs: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--fingerprint {pair}: write KEY=VALUE")
        if key in found:
            raise UsageError(f"--fingerprint {key}: is given twice")
        found[key] = value
    return found


def _mode(text: str) -> int:
    try:
        return int(text, OCTAL)
    except ValueError:
        raise UsageError(f"--mode {text}: write octal, such as 0755") from None


def _owner(text: str) -> tuple[int, int]:
    """Return user and group; who calls where nothing is said, the user's own group where only that is not."""
    if not text:
        return os.geteuid(), os.getegid()
    user, colon, group = text.partition(":")
    try:
        if user.isdecimal():
            uid, own_gid = int(user), int(user)
        else:
            entry = pwd.getpwnam(user)
            uid, own_gid = entry.pw_uid, entry.pw_gid
        if not colon:
            return uid, own_gid
        return uid, int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise UsageError(f"--owner {text}: {error.args[0]}") from None
