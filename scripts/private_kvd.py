"""The private kvd of `kvctl bench`, for the demo and the tests."""

from kvctl.private import BIN, FILE_SYSTEM, POLL_S, READY_S, STOP_S, KvdFailedError, PrivateKvd, signals_held

__all__ = ["BIN", "FILE_SYSTEM", "POLL_S", "READY_S", "STOP_S", "KvdFailedError", "PrivateKvd", "signals_held"]
