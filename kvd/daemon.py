"""The daemon's life: bring-up as one stack of do and undo, serving, and the way down.

Order matters on the way down: no new clients (unmount), then what they left behind is sealed and flushed to NVMe, and
only then go the data plane, the tmpfs and the catalogue.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, assert_never

import pyfuse3
import trio

from kvd import log, mount
from kvd.api.app import serve
from kvd.api.backend import FeatureOff
from kvd.api.clients import client_socket, serve_clients
from kvd.catalog.catalog import Catalog
from kvd.control import DaemonControl, Features
from kvd.errors import CantFlushError, ExitCode, UnavailableError
from kvd.flush import Flushed, flush
from kvd.fs.attributes import CACHE_S
from kvd.fs.hot import Hot
from kvd.fs.hot_plane import SplitHot
from kvd.fs.hot_table import HotBounds
from kvd.fs.operations import Operations
from kvd.fs.remembered import Remembered
from kvd.fs.split import ALL_FEATURES, EventKind, Feature, Split
from kvd.fs.virtual import Virtual
from kvd.lock import locked
from kvd.notify import Notifier
from kvd.session.verbs import SessionVerbs
from kvd.tier.books import Books
from kvd.tier.ddr import DdrStore
from kvd.tier.mover import Mover
from kvd.tier.nvme import NvmeStore
from kvd.tier.objects import Objects
from kvd.tier.page import PAGE_BYTES
from kvd.tier.recovery import Recovery
from kvdriver import BLOCK_BYTES, ResilientDevice, Tier
from kvdriver.address import DeviceAddress
from kvdriver.opening import open_resilient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from kvd.config import Config
    from kvdriver import Device

logger = log.get(__name__)

SESSIONS_MAX = 1 << 20
NVME_GROWTH = 2
"""Frames are numbered for this many times the present size of the file systems, since those may be grown."""
MOVE_DEADLINES = 10
"""A move may wait and take so many times as long as one of its requests: it can be of a terabyte."""
NVME_BYTES_MIN = 64 << 30
"""What they are taken to have at least when one is not seen."""
NVME_BYTES = "nvme_bytes"
"""Key of the catalogue's `meta`: the size that the directories' file systems had together when all were last seen."""
HANDLERS_MAX = 1000
"""Requests that wait in Python at once; each is one trio task."""
QUIET_S = 0.03
QUIET_S_MAX = 0.5
SWITCH_S = 0.0005
"""How long the loop waits for the interpreter while a helper thread computes: a request crosses to such threads several times."""
RELEASE_S = 1.0
"""What clients get to close their files after the unmount, before the flush begins."""
REAP_S = 10.0
"""What the deletion of invalidated content gets before the flush, which would only copy it."""
NEGOTIATE_S = 30.0
CHECKPOINT_S = 5.0


def run(config: Config) -> int:
    """Serve the mount until told to stop; return the exit status.

    Raises
    ------
    KvdError
        If the daemon can't start.
    """
    _raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_S)
    with locked(config.daemon.state, unstick=lambda: mount.abort_dead(mount.System(), config)):
        return trio.run(_Daemon(config).run, strict_exception_groups=True)


def _raise_descriptor_limit() -> None:
    """Take all descriptors that the hard limit gives: an open object costs two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Daemon:
    """One life of the daemon."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._system = mount.System()
        self._notifier = Notifier.from_environ()
        self._features_off: list[FeatureOff] = []
        self._stop = trio.Event()
        self._unmounted = trio.Event()
        self._status = ExitCode.OK

    async def run(self) -> int:
        """Bring up, serve, go down."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, signals)
                async with AsyncExitStack() as stack:
                    await self._serve(stack)
                nursery.cancel_scope.cancel()
        return self._status

    async def _listen(self, signals: AsyncIterator[int]) -> None:
        """Stop at the first signal, give up the flush at the second."""
        asked = False
        async for number in signals:
            if asked:
                raise CantFlushError(
                    "told twice to stop, so the flush was given up; what is only in DDR stays there for the next start"
                )
            asked = True
            logger.info("stopping", signal=signal.Signals(number).name)
            self._stop.set()

    async def _serve(self, stack: AsyncExitStack) -> None:
        config = self._config
        mount.detach_dead(self._system, config)
        catalog = Catalog.open(config.daemon.state, page_bytes=PAGE_BYTES)
        stack.callback(catalog.close)
        ddr = self._mount_ddr(stack, catalog.db.uuid)
        nvme = NvmeStore(
            config.nvme.dirs,
            uuid=catalog.db.uuid,
            reserve_bytes=config.nvme.reserve_bytes,
            direct=config.nvme.direct != "off",
            copies=catalog.placements.copies_by_dir(),
            deadline_s=config.nvme.deadline_s,
        )
        await nvme.start()
        device = await self._open_device(nvme, catalog)
        stack.callback(device.close)
        books = Books(device)
        mover = await stack.enter_async_context(
            Mover.open(
                page_bytes=PAGE_BYTES,
                devices=len(nvme.directories),
                deadline_s=MOVE_DEADLINES * config.nvme.deadline_s,
                request_deadline_s=config.nvme.deadline_s,
            )
        )
        with catalog.db.believed():
            recovered = await Recovery(catalog, books, ddr, nvme).run()
        mounted = mount.mount_fuse(self._system, config)
        stack.callback(os.close, mounted.fd)
        stack.callback(mount.unmount, self._system, config)
        self._features_off += mounted.features_off
        ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.enter_context(ours)
        split = await stack.enter_async_context(self._open_split(mounted.fd, ours.fileno()))
        hot = Hot(SplitHot(split, self._hot_bounds()), catalog)
        stack.callback(hot.stop)
        objects = Objects(config, catalog, books, ddr, nvme, mover, split, hot)
        sessions = SessionVerbs(catalog, objects)
        objects.adopt(recovered)
        hot.serve(objects.lives, objects.sharing.dropped)
        await objects.room.resize_nvme()
        control = DaemonControl(config, catalog, objects, sessions, books, device, lambda: self._features(split))
        virtual = Virtual(control.status, control.in_memory, split.statistics)
        operations = Operations(catalog, objects, sessions, virtual, hot, objects_max=SESSIONS_MAX)
        objects.reaper.keeper = Remembered(split, operations, hot)
        pyfuse3.init(operations, f"/dev/fd/{peer.detach()}", {"default_permissions"})  # libfuse closes it
        stack.callback(pyfuse3.close, unmount=False)
        await objects.describer.start()
        if objects.describer.off:
            self._features_off.append(FeatureOff(feature="self-description", reason=objects.describer.reason_off))
        await self._run(catalog, objects, hot, control, split, device)

    def _mount_ddr(self, stack: AsyncExitStack, uuid: str) -> DdrStore:
        """Mount the ddr tmpfs, or find it again; it outlives this process only if objects are in it."""
        config = self._config.ddr
        DdrStore.belongs(config.path, uuid=uuid)  # another catalogue's is not even resized
        size_bytes = config.budget_bytes + config.burst_bytes
        self._features_off += mount.mount_tmpfs(self._system, config.path, size_bytes, huge=True)
        ddr = DdrStore(config.path, uuid=uuid)
        stack.callback(lambda: any(True for _ in ddr.inos()) or mount.unmount_tmpfs(self._system, config.path))
        stack.callback(ddr.spares.clear)
        return ddr

    async def _run(
        self, catalog: Catalog, objects: Objects, hot: Hot, control: DaemonControl, split: Split, device: Device
    ) -> None:
        config = self._config
        async with trio.open_nursery() as plane:
            negotiated = trio.Event()
            plane.start_soon(self._events, split, objects, negotiated)
            plane.start_soon(self._names)
            plane.start_soon(self._notifier.watchdog)
            if isinstance(device, ResilientDevice):
                plane.start_soon(device.tend)
            with trio.fail_after(NEGOTIATE_S):
                await negotiated.wait()
            if isinstance(device, ResilientDevice):
                plane.start_soon(objects.mending.run, device)
            plane.start_soon(hot.run)
            plane.start_soon(objects.room.run)
            plane.start_soon(objects.index.run)
            plane.start_soon(objects.tending.run)
            plane.start_soon(objects.sample_writers)
            if objects.warming is not None:
                plane.start_soon(objects.warming.run)
            plane.start_soon(objects.streaming.run)
            plane.start_soon(objects.prefetch.run)
            plane.start_soon(objects.reaper.run)
            plane.start_soon(objects.admission.run)
            plane.start_soon(objects.describer.run)
            plane.start_soon(objects.scrub.run)
            plane.start_soon(objects.descending.run)
            plane.start_soon(objects.worth.run)
            plane.start_soon(objects.evicting.run)
            plane.start_soon(objects.remember_uses)
            plane.start_soon(control.sessions.run)
            plane.start_soon(_checkpoints, catalog)
            async with trio.open_nursery() as front:
                group = config.daemon.socket_group
                await front.start(serve, control, config.daemon.socket, group)
                clients = client_socket(config.daemon.socket)
                await front.start(serve_clients, control, config.daemon.mount, clients, group)
                features = self._features(split)
                logger.info("serving", mount=config.daemon.mount, features=features.on)
                for off in features.off:
                    logger.info("without", feature=off.feature, reason=off.reason)
                self._notifier.ready()
                await self._stop.wait()
                front.cancel_scope.cancel()
            self._notifier.stopping()
            await _quiet(split)
            mount.unmount(self._system, config)
            flushed = await self._flush(objects)
            plane.cancel_scope.cancel()
        hot.stop()
        control.sessions.stop()
        await self._leave(catalog, objects, flushed)

    async def _names(self) -> None:
        """Serve names until the split ends the conversation; then there is nothing left to do but stop."""
        await pyfuse3.main(1, HANDLERS_MAX)
        self._stop_unasked()

    def _stop_unasked(self) -> None:
        """Stop because the mount or the names have ended, which nobody told this daemon to do: not with status 0."""
        if not self._stop.is_set():
            self._status = ExitCode.UNAVAILABLE
            self._stop.set()

    async def _events(self, split: Split, objects: Objects, negotiated: trio.Event) -> None:
        async for event in split.events():
            match event.kind:
                case EventKind.INIT:
                    negotiated.set()
                case EventKind.REFUSED:
                    raise UnavailableError(
                        f"this kernel speaks FUSE 7.{event.value}, kvd needs 7.31; run Linux 5.4 or newer"
                    )
                case EventKind.UNMOUNTED:
                    if not self._stop.is_set():
                        logger.warning("unmounted from outside, stopping", mount=self._config.daemon.mount)
                    self._unmounted.set()
                    self._stop_unasked()
                case EventKind.PEER_GONE:
                    self._stop_unasked()
                case EventKind.BAD_PAGE:
                    objects.bad_page(event.node, event.value)
                case EventKind.IO_ERROR:
                    objects.failed_io(event.node, event.value, event.device)
                case EventKind.FREED:
                    objects.room.changed()
                case _:
                    assert_never(event.kind)

    async def _flush(self, objects: Objects) -> Flushed:
        with trio.move_on_after(RELEASE_S):
            await self._unmounted.wait()
        if self._unmounted.is_set():
            await objects.close_all()
        with trio.move_on_after(REAP_S):  # the next start goes on with what is left
            await objects.reaper.idle()
        await objects.streaming.stop()
        objects.evicting.stop()
        return await flush(objects, flush_s=self._config.daemon.flush_s, notifier=self._notifier)

    async def _leave(self, catalog: Catalog, objects: Objects, flushed: Flushed) -> None:
        """Give DDR back if nothing is only there."""
        ddr = self._config.ddr.path
        if flushed.left:
            self._status = ExitCode.CANT_FLUSH
            logger.error(
                "objects could not be flushed; the ddr tmpfs stays, and the next start finds them there",
                objects=flushed.left,
                reason=flushed.reason,
                ddr=ddr,
            )
        else:
            await objects.leave_ddr()
        await objects.describer.flush()
        await catalog.db.sync()
        if not flushed.left:
            mount.unmount_tmpfs(self._system, ddr)

    def _features(self, split: Split) -> Features:
        on = tuple(feature.name.lower() for feature in Feature if feature in split.features and feature.name)
        off = list(self._features_off)
        known = {each.feature for each in off}
        for feature in Feature:
            name = (feature.name or "").lower()
            if feature not in split.features and name not in known:
                wanted = feature is not Feature.PASSTHROUGH or self._config.fuse.passthrough != "off"
                reason = "this kernel does not offer it" if wanted else '[fuse] passthrough = "off"'
                off.append(FeatureOff(feature=name, reason=reason))
        return Features(on=on, off=tuple(off))

    async def _open_device(self, nvme: NvmeStore, catalog: Catalog) -> Device:
        nvme_bytes = nvme.size_bytes()
        if all(directory.claimed for directory in nvme.directories):
            catalog.db.keep_number(NVME_BYTES, nvme_bytes)  # for a start at which a directory does not answer
        else:
            nvme_bytes = max(nvme_bytes, NVME_BYTES_MIN, catalog.db.number(NVME_BYTES))
        burst = self._config.ddr.budget_bytes + self._config.ddr.burst_bytes
        return await open_resilient(
            DeviceAddress.parse(self._config.daemon.device),
            page_bytes=PAGE_BYTES,
            capacity_blocks={
                Tier.DDR: burst // BLOCK_BYTES,
                Tier.NVME: NVME_GROWTH * nvme_bytes // BLOCK_BYTES,
            },
            sessions_max=SESSIONS_MAX,
        )

    def _open_split(self, fuse_fd: int, peer_fd: int) -> AbstractAsyncContextManager[Split]:
        wanted = ALL_FEATURES
        if self._config.fuse.passthrough == "off" or not self._system.is_admin():
            wanted &= ~Feature.PASSTHROUGH
        fuse = self._config.fuse
        return Split.open(
            fuse_fd=fuse_fd,
            peer_fd=peer_fd,
            readers=fuse.readers,
            read_wait_s=fuse.read_wait_s,
            device_wait_s=self._config.nvme.deadline_s,
            features=wanted,
            hot=self._hot_bounds(),
        )

    def _hot_bounds(self) -> HotBounds:
        names_max = self._config.fuse.hot_names
        return HotBounds(inodes_max=names_max, names_max=names_max, absent_ms=int(CACHE_S * 1000))


async def _quiet(split: Split) -> None:
    """Wait for a moment without requests: the kernel drops releases that are still queued when the mount goes."""
    with trio.move_on_after(QUIET_S_MAX):
        seen = -1
        while (statistics := split.statistics()).pending or statistics.requests != seen:
            seen = statistics.requests
            await trio.sleep(QUIET_S)


async def _checkpoints(catalog: Catalog) -> None:
    while True:
        await trio.sleep(CHECKPOINT_S)
        await catalog.db.checkpoint()
