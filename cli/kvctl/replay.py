"""``kvctl replay``: what each policy makes of a trace, before anything is bought."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  cyclopts reads this annotation
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from kvctl import options as amounts
from kvctl.exits import Exit, UsageError
from kvctl.names import show as printable
from kvctl.run import Run  # noqa: TC001  cyclopts reads this annotation

if TYPE_CHECKING:
    from kvctl.replays.run import Options

BELADY: Final = "belady"
BLOCKS_MAX: Final = 1 << 40
TIERS: Final = ("ddr", "nvme")
LLAMA_3_8B_TOKEN_BYTES: Final = 128 << 10
"""32 layers, 8 KV heads of 128, FP16, K and V."""


def replay(  # noqa: PLR0913  each is an option of the command
    trace: Annotated[Path, Parameter(name="TRACE")],
    /,
    *,
    blocks: int | None = None,
    policy: str = "default,lru,belady",
    hints: float | None = None,
    tiers: str | None = None,
    token_bytes: int = LLAMA_3_8B_TOKEN_BYTES,
    ddr_rate: str = "10GB",
    nvme_rate: str = "2GB",
    prefill: float = 5000.0,
    plot: Path | None = None,
    run: Annotated[Run, Parameter(parse=False)],
) -> int:
    """Replay a trace through the daemon's own policies: hit rates, bytes moved, time to first token. No daemon is asked.

    TRACE is a file of Mooncake's format (.jsonl), an agent session (.json) or a folder of those.

    Parameters
    ----------
    blocks
        How many blocks DDR holds.
    policy
        Names with commas between: default, lru, lru-tail, lfu, fifo, s3-fifo, arc; belady knows the future.
    hints
        The client says of each request whether its chain will go on, and is right in this share of them.
    tiers
        Sizes instead of --blocks: ddr=64GiB,nvme=1TiB. With --blocks only nvme=SIZE.
    token_bytes
        KV of one token, for sizes and bytes.
    ddr_rate
        Bytes a second at which DDR is read; kvctl bench read measures it.
    nvme_rate
        The same of NVMe; kvctl bench cold measures it.
    prefill
        Tokens a second that the engine prefills.
    plot
        Draw the numbers into this SVG file, too.
    """
    from kvctl.replays import plot as picture  # noqa: PLC0415  other commands start sooner without
    from kvctl.replays import report  # noqa: PLC0415
    from kvctl.replays import run as replays  # noqa: PLC0415

    options = replays.Options(
        policies=_policies(policy),
        hints=_share(hints),
        ddr_blocks=blocks,
        tier_bytes=_tiers(tiers),
        token_bytes=amounts.positive("--token-bytes", token_bytes),
        ddr_bytes_s=amounts.size("--ddr-rate", ddr_rate),
        nvme_bytes_s=amounts.size("--nvme-rate", nvme_rate),
        prefill_tokens_s=prefill,
    )
    _check(options)
    if plot is not None:
        picture.check(plot)
    with run.err.status(f"reading {printable(str(trace))}") as status:  # nothing where stderr is no terminal
        found = replays.run(trace, options, status.update)
    if plot is not None:
        picture.draw(found, plot)
    if run.as_json:
        run.document(report.document(found))
    else:
        run.show(*report.show(found))
    return Exit.OK


def _check(options: Options) -> None:
    blocks, prefill = options.ddr_blocks, options.prefill_tokens_s
    if blocks is not None and not 0 < blocks <= BLOCKS_MAX:
        raise UsageError(f"--blocks {blocks}: 1 to {BLOCKS_MAX}")
    if (blocks is None) == ("ddr" not in options.tier_bytes):
        raise UsageError("give the size of DDR once: --blocks N or --tiers ddr=SIZE")
    if not 0 < prefill < float("inf"):
        raise UsageError(f"--prefill {prefill}: more than 0 tokens a second")


def _policies(text: str) -> tuple[str, ...]:
    from kvd.policy.policies import POLICIES  # noqa: PLC0415  as above

    known = (*POLICIES, BELADY)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise UsageError(f"--policy {name or text!r}: there are {', '.join(known)}")
    return names


def _share(hints: float | None) -> float | None:
    if hints is not None and not 0 <= hints <= 1:
        raise UsageError(f"--hints {hints}: a share from 0 to 1")
    return hints


def _tiers(text: str | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, equals, size = part.strip().partition("=")
        if name not in TIERS or not equals or name in found:
            raise UsageError(f"--tiers {part}: ddr=SIZE and nvme=SIZE, each once")
        found[name] = amounts.size(f"--tiers {name}=", size)
    return found
