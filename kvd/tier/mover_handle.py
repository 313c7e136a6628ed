"""The calls into `csrc/mover`, with their structures."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

from kvd.tier._mover import ffi, lib
from kvd.tier.movement import DeviceStatistics, DeviceTimeoutError, MoverStatistics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvd.tier.movement import Job, Kind, Part

_REAP_AT_ONCE = 64
_MS_PER_S = 1000
_NS_PER_S = 1e9

assert sys.byteorder == "little", "sums are stored as the CPU has them"


class Handle:
    """A mover of C; the parameters are those of `Mover.open`.

    Raises
    ------
    OSError
        EINVAL for sizes that don't fit, or what setting up io_uring said.
    """

    def __init__(
        self,
        *,
        page_bytes: int,
        devices: int,
        queue_jobs: int,
        queue_depth: int,
        io_bytes: int,
        deadline_s: float,
        request_deadline_s: float,
    ) -> None:
        config = ffi.new(
            "struct kvd_mover_config *",
            {
                "queue_jobs": queue_jobs,
                "queue_depth": queue_depth,
                "io_bytes": io_bytes,
                "n_devices": devices,
                "request_ms": max(1, round(request_deadline_s * _MS_PER_S)),
            },
        )
        out = ffi.new("kvd_mover **")
        check(lib.kvd_mover_init(config, out), "start the mover")
        self._mover = out[0]
        self._page_bytes = page_bytes
        self._deadline_ms = round(deadline_s * _MS_PER_S)
        self._results = ffi.new("struct kvd_mover_result[]", _REAP_AT_ONCE)
        self.devices = devices

    @property
    def event_fd(self) -> int:
        """Readable when there are results."""
        return lib.kvd_mover_eventfd(self._mover)

    def close(self) -> None:
        """Stop the threads: it waits for them, within a bound."""
        lib.kvd_mover_fini(self._mover)

    def submit(self, token: int, job: Job) -> tuple[Any, ...]:
        """Hand over a move; return what must be kept until its result is here.

        Raises
        ------
        DeviceTimeoutError
            A device of it is known not to answer.
        OSError
            EAGAIN if the queue is full, EINVAL if the job makes no sense.
        """
        what = f"submit a {job.kind.name.lower()}"
        runs = ffi.new("struct kvd_mover_run[]", list(job.runs))
        sums = ffi.from_buffer("uint32_t[]", job.sums)
        parts = ffi.new("struct kvd_mover_part[]", [_part(part) for part in job.parts])
        spec = {
            "token": token,
            "kind": job.kind,
            "flags": job.flags,
            "page_bytes": self._page_bytes,
            "ddr_fd": job.ddr_fd,
            "size_bytes": job.size_bytes,
            "stripe_bytes": job.stripe_bytes,
            "n_parts": len(job.parts),
            "parts": parts,
            "n_runs": len(job.runs),
            "runs": runs,
            "crc": sums,
            "deadline_ms": self._deadline_ms,
            "stream": job.stream_address,
        }
        err = lib.kvd_mover_submit(self._mover, ffi.new("struct kvd_mover_job *", spec))
        if err == -errno.EBUSY:
            silent = max((part.device for part in job.parts), key=lambda device: self.device(device).given_up)
            raise DeviceTimeoutError(what, silent)
        check(err, what)
        return runs, sums

    def cancel(self, token: int) -> None:
        """Ask for a move to end early; its result comes all the same."""
        lib.kvd_mover_cancel(self._mover, token)

    def results(self) -> Iterator[Any]:
        """Yield each `struct kvd_mover_result` that is there; it is valid until the next."""
        while count := lib.kvd_mover_reap(self._mover, self._results, _REAP_AT_ONCE):
            yield from self._results[0:count]

    def statistics(self, kind: Kind, callers_waiting: int) -> MoverStatistics:
        """Count what happened since the start in one direction."""
        stats = ffi.new("struct kvd_mover_stats *")
        lib.kvd_mover_stats(self._mover, stats)
        return MoverStatistics(
            jobs=stats.jobs[kind],
            failed=stats.failed[kind],
            moved_bytes=stats.bytes[kind],
            busy_s=stats.busy_ns[kind] / _NS_PER_S,
            queued=stats.queued[kind],
            callers_waiting=callers_waiting,
        )

    def device(self, device: int) -> DeviceStatistics:
        """Tell what a device has to do."""
        stats = ffi.new("struct kvd_mover_device *")
        check(lib.kvd_mover_device_stats(self._mover, device, stats), "look at a device")
        return DeviceStatistics(
            queue_depth=stats.queue_depth,
            in_flight=stats.in_flight,
            given_up=stats.given_up,
            queued=stats.queued,
            oldest_s=stats.oldest_ns / _NS_PER_S,
            read_bytes=stats.read_bytes,
            written_bytes=stats.written_bytes,
        )


def _part(part: Part) -> dict[str, int]:
    dir_fd = -1 if part.dir_fd is None else part.dir_fd
    return {"fd": part.fd, "device": part.device, "direct": part.direct, "dir_fd": dir_fd}


def check(err: int, what: str) -> None:
    """Raise OSError if `err` is a negative errno."""
    if err < 0:
        raise OSError(-err, f"{what}: {os.strerror(-err)}")
