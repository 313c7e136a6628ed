"""Measure the ladder of formats on a real model and real text.

Usage: ``python -P -m format_report [--json] [--dtype fp16|bf16] [--prefix N] [--next N]`` with `scripts` in PYTHONPATH, by the
Python of the virtual environment; `make format-report` sees to the model's own environment. Nothing is written but what is
printed. Exit status: 0, 1 (a bit-exact format was not, or the model failed), 2 (usage).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from format_report.measure import FORMATS, Row, measure, memcpy_gb_s
from format_report.model import Model, WorkerError
from format_report.texts import ROOT, texts
from kvctl.benches.run import signals_end_it
from kvd.format.model import Role

PYTHON = ROOT / "build/format-report-venv/bin/python"
WORKER = Path(__file__).with_name("worker.py")
PREFIX_TOKENS = 1200
NEXT_TOKENS = 400
EXACT = ("raw", "zstd")
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything; return what was found.

    Raises
    ------
    WorkerError
        If the model can't be used.
    """
    rows = [Row(name=each.name) for each in FORMATS]
    object_file, back = folder / "cache.safetensors", folder / "back.safetensors"
    threads = len(os.sched_getaffinity(0))
    with (
        Console(stderr=True).status("the model is loaded") as status,
        Model(options.python, WORKER, folder / "log", threads) as model,
    ):
        description = model.description
        for text in texts():
            status.update(f"{text.name}: its cache is computed")
            model.prefill(
                text.text, prefix=options.prefix, following=options.next, dtype=options.dtype, file=object_file
            )
            top: list[int] | None = None
            for each, row in zip(FORMATS, rows, strict=True):
                status.update(f"{text.name}: {each.name}")
                measured, chosen = measure(each, object_file, back, model, top)
                row.measured.append(measured)
                top = chosen if top is None else top
    raw = rows[0]
    return {
        **description,
        "dtype": options.dtype,
        "prefix_tokens": options.prefix,
        "next_tokens": raw.measured[0].tokens,
        "texts": [{"name": text.name, "source": text.source} for text in texts()],
        "object_bytes": raw.measured[0].object_bytes,
        "memcpy_gb_s": memcpy_gb_s(raw.measured[0].object_bytes),
        "formats": [_row(row, raw) for row in rows],
    }


def _row(row: Row, raw: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "exact": row.exact,
        "ratio": row.ratio,
        "relative_l2_k": row.relative_l2(Role.KEYS),
        "relative_l2_v": row.relative_l2(Role.VALUES),
        "most_k": row.most(Role.KEYS),
        "most_v": row.most(Role.VALUES),
        "top1_agreement": row.agreement,
        "perplexity": row.perplexity,
        "perplexity_change": row.perplexity / raw.perplexity - 1,
        "encode_gb_s": row.encode_gb_s(),
        "decode_gb_s": row.decode_gb_s(),
    }


def show(found: dict[str, Any], console: Console) -> None:
    """Print the table and what it is of."""
    console.print(
        f"{found['model']}, cache in {found['dtype']}, {found['prefix_tokens']} tokens of prefix, "
        f"{found['next_tokens']} that follow, {len(found['texts'])} texts:"
    )
    for text in found["texts"]:
        console.print(f"  {text['name']}: {text['source']}")
    table = Table()
    table.add_column("format")
    columns = ("ratio", "L2 of K", "L2 of V", "most K", "most V", "same next", "perplexity", "encode", "decode")
    for column in columns:
        table.add_column(column, justify="right")
    for row in found["formats"]:
        lossy = not row["exact"]
        table.add_row(
            row["name"],
            f"{row['ratio']:.2f}",
            *(f"{row[key]:.4f}" if lossy else "exact" for key in ("relative_l2_k", "relative_l2_v")),
            *(f"{row[key]:.3f}" if lossy else "" for key in ("most_k", "most_v")),
            f"{row['top1_agreement']:.1%}",
            f"{row['perplexity']:.3f}" + (f" ({row['perplexity_change']:+.2%})" if lossy else ""),
            f"{row['encode_gb_s']:.2f} GB/s",
            f"{row['decode_gb_s']:.2f} GB/s",
        )
    console.print(table)
    console.print(
        f"memcpy of the same {found['object_bytes'] / 1e6:.0f} MB: {found['memcpy_gb_s']:.1f} GB/s; encoding and decoding "
        "are of files in memory, one thread, checksums and measured error included"
    )


def main(arguments: list[str]) -> int:
    """Run the report."""
    parser = argparse.ArgumentParser(prog="format_report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--dtype", choices=("fp16", "bf16"), default="fp16", help="of the cache")
    parser.add_argument("--prefix", type=int, default=PREFIX_TOKENS, help="tokens whose cache is kept")
    parser.add_argument("--next", type=int, default=NEXT_TOKENS, help="tokens that are judged after it")
    parser.add_argument("--python", type=Path, default=PYTHON, help="of the model's environment")
    options = parser.parse_args(arguments)
    if options.prefix < 1 or options.next < 1:
        parser.error("--prefix and --next count tokens")
    try:
        with signals_end_it(), tempfile.TemporaryDirectory(prefix="kvd-format-report-") as folder:
            found = run(Path(folder), options)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (WorkerError, OSError) as error:
        sys.stderr.write(f"format_report: {error}\n")
        return EXIT_FAILED
    if options.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        show(found, Console(width=None if sys.stdout.isatty() else 140))
    wrong = [row["name"] for row in found["formats"] if row["name"] in EXACT and not row["exact"]]
    if wrong:
        sys.stderr.write(f"format_report: not bit-exact: {', '.join(wrong)}\n")
    return EXIT_FAILED if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
