"""A model server of the demo's kind without a model: ``fake_model.py SLOT_FOLDER [honest|liar|hanging|absent]``.

Its answer is a digest of the prompt, which it keeps in its slot: an answer after a restore comes from the slot's file.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

SLOT_BYTES = 3 << 20
CHARS_A_TOKEN = 4


class Handler(BaseHTTPRequestHandler):
    slots: ClassVar[Path]
    kind: ClassVar[str]
    digest: ClassVar[str] = ""
    restored: ClassVar[bool] = False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/completion":
            self._complete(body)
            return
        path = self.slots / body["filename"]
        if self.path.endswith("action=save"):
            block = self.digest.encode()
            path.write_bytes(block * (SLOT_BYTES // len(block)))
            self._reply({"n_written": SLOT_BYTES})
        else:
            content = path.read_bytes()
            type(self).digest = content[:64].decode()
            type(self).restored = True
            assert content == self.digest.encode() * (SLOT_BYTES // 64)
            self._reply({"n_read": len(content)})

    def _complete(self, body: dict[str, Any]) -> None:
        if self.kind == "hanging" and self.restored:
            print("hangs", flush=True)
            Path(os.environ["FAKE_MODEL_HANGS"]).touch()
            threading.Event().wait()
        tokens = len(body["prompt"]) // CHARS_A_TOKEN
        cached = tokens - 1 if self.digest else 0
        if not self.digest:
            type(self).digest = hashlib.sha256(body["prompt"].encode()).hexdigest()
        text = self.digest[: body["n_predict"]]
        if self.kind == "liar" and self.restored:
            text = text[::-1]
        self.send_response(200)
        self.end_headers()
        for char in text:
            self.wfile.write(b"data: " + json.dumps({"content": char}).encode() + b"\n\n")
        timings = {"cache_n": cached, "prompt_n": tokens - cached}
        self.wfile.write(b"data: " + json.dumps({"content": "", "timings": timings}).encode() + b"\n\n")

    def _reply(self, document: dict[str, int]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def main(slots: str, kind: str) -> None:
    if kind == "absent":
        sys.exit(3)
    Handler.slots, Handler.kind = Path(slots), kind
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
