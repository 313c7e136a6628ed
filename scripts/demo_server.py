"""A llama.cpp server for the demo: prints its URL and serves until its standard input ends.

Usage: demo_server.py MODEL SLOT_FOLDER CONTEXT_TOKENS
"""

import sys

from xllamacpp import CommonParams, Server


def main(model: str, slots: str, context_tokens: str) -> None:
    """Serve `model`, saving slots to and restoring them from the folder `slots`."""
    params = CommonParams()
    params.model.path = model
    params.n_ctx = int(context_tokens)
    params.n_parallel = 1
    params.slot_save_path = slots.rstrip("/") + "/"
    params.endpoint_slots = True
    params.port = 0
    params.warmup = False
    server = Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
