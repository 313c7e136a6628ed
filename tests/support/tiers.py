"""Both tiers, the engine and the catalogue in a scratch folder, with a fake data plane: objects without a mount."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvd.catalog.catalog import Catalog
from kvd.catalog.schema import ROOT_INO
from kvd.config import AdmissionConfig, AgeingConfig, Config, DaemonConfig, DdrConfig, FuseConfig, LogConfig, NvmeConfig
from kvd.fs.hot import Hot
from kvd.session.verbs import SessionVerbs
from kvd.tier.books import Books
from kvd.tier.ddr import DdrStore
from kvd.tier.mover import Mover
from kvd.tier.nvme import NvmeStore
from kvd.tier.objects import Objects
from kvd.tier.recovery import Recovery
from kvdriver import BLOCK_BYTES, InProcessDevice, Tier
from support.fake_plane import FakePlane
from support.gated_mover import GatedMover
from support.hot_truth import hold_to_truth
from support.yielding_device import YieldingDevice

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from kvd.tier.found import Recovered
    from kvdriver import Device

PAGE_BYTES = 65536
MIB = 1 << 20

YIELDING: ContextVar[bool] = ContextVar("YIELDING", default=False)
"""Whether the engine lets other tasks run in each batch."""


def config_at(
    root: Path,
    *,
    ddr_mib: int = 8,
    burst_mib: int = 1,
    nvme_mib: int = 64,
    write_wait_s: float = 0.2,
    idle_s: float = 0.05,
    admission: AdmissionConfig | None = None,
    nvme_dirs: int = 1,
    deadline_s: float = 30.0,
    spare: str = "off",
    on_full: str = "evict",
    policy: str = "default",
    reuse_min: float = 0.0,
) -> Config:
    drives = [f"nvme{index}" for index in range(nvme_dirs)]
    for name in ("mnt", "state", "ddr", *drives):
        (root / name).mkdir(exist_ok=True)
    return Config(
        daemon=DaemonConfig(
            mount=root / "mnt", state=root / "state", socket=root / "sock", socket_group="kvd", flush_s=10
        ),
        fuse=FuseConfig(passthrough="auto", allow_other=True, readers=2, write_wait_s=write_wait_s, read_wait_s=30),
        ddr=DdrConfig(
            path=root / "ddr",
            budget_bytes=ddr_mib * MIB,
            burst_bytes=burst_mib * MIB,
            high_watermark=0.9,
            low_watermark=0.5,
            idle_s=idle_s,
            spare=spare,
        ),
        nvme=NvmeConfig(
            dirs=tuple(root / name for name in drives),
            capacity_bytes=nvme_mib * MIB,
            reserve_bytes=0,
            direct="auto",
            deadline_s=deadline_s,
            probe_s=0.01,
            on_full=on_full,
        ),
        log=LogConfig(level="debug", format="text"),
        admission=admission or AdmissionConfig(),
        ageing=AgeingConfig(policy=policy, reuse_min=reuse_min),
    )


@dataclass
class Tiers:
    """One life of the tiers on a folder."""

    config: Config
    catalog: Catalog
    device: Device
    books: Books
    nvme: NvmeStore
    objects: Objects
    sessions: SessionVerbs
    plane: FakePlane
    mover: GatedMover
    hot: Hot
    recovered: Recovered

    async def make(self, name: bytes, content: bytes) -> int:
        ino = await self.begin(name)
        self.write(ino, content)
        await self.objects.release(ino, write=True)
        return ino

    async def begin(self, name: bytes | None) -> int:
        with self.catalog.db.transaction():
            inode = self.catalog.names.make(ROOT_INO, name, mode=0o100644, uid=0, gid=0, now_ns=1)
            self.catalog.placements.add(inode.ino)
        try:
            await self.objects.create(inode.ino, ROOT_INO)
        except BaseException:  # as `Operations` does
            self.catalog.names.vanish(inode.ino, 1)
            await self.objects.abandon(inode.ino)
            raise
        return inode.ino

    def write(self, ino: int, content: bytes, offset: int = 0) -> None:
        os.pwrite(self.plane.objects[ino].fd, content, offset)

    def see(self, ino: int) -> bytes:
        """Return what a reader sees who has the object open, through the DDR or the NVMe file."""
        fd = self.plane.objects[ino].fd
        with open(f"/proc/self/fd/{fd}", "rb") as file:
            return file.read()

    async def read(self, ino: int) -> bytes:
        await self.objects.open(ino, write=False)
        try:
            return self.see(ino)
        finally:
            await self.objects.release(ino, write=False)

    async def used_blocks(self, tier: Tier) -> int:
        info = await self.books.tier(tier)
        assert info.reserved_blocks == 0 or tier is Tier.DDR
        return info.used_blocks


@asynccontextmanager
async def tiers_at(
    root: Path,
    *,
    plane: FakePlane | None = None,
    open_device: Callable[[dict[Tier, int]], Awaitable[Device]] | None = None,
    check: bool = True,
    now_ns: Callable[[], int] | None = None,
    **settings: object,
) -> AsyncIterator[Tiers]:
    config = config_at(root, **settings)  # type: ignore[arg-type]
    catalog = Catalog.open(config.daemon.state, page_bytes=PAGE_BYTES)
    burst = config.ddr.budget_bytes + config.ddr.burst_bytes
    capacity = {Tier.DDR: burst // BLOCK_BYTES, Tier.NVME: 4 * config.nvme.capacity_bytes // BLOCK_BYTES}
    device: Device
    if open_device is not None:
        device = await open_device(capacity)
    else:
        device = InProcessDevice.open(page_bytes=PAGE_BYTES, capacity_blocks=capacity, sessions_max=4096)
    if YIELDING.get():
        device = YieldingDevice(device)
    plane = plane or FakePlane()
    try:
        async with Mover.open(page_bytes=PAGE_BYTES, devices=len(config.nvme.dirs)) as mover:
            books = Books(device)
            ddr = DdrStore(config.ddr.path, uuid=catalog.db.uuid)
            nvme = NvmeStore(
                config.nvme.dirs,
                uuid=catalog.db.uuid,
                reserve_bytes=0,
                direct=True,
                deadline_s=config.nvme.deadline_s,
                striped_bytes_min=MIB,
                stripe_bytes=PAGE_BYTES,
            )
            await nvme.start()
            recovered = await Recovery(catalog, books, ddr, nvme).run()
            hot = Hot(plane.hot, catalog)
            gated = GatedMover(mover)
            objects = Objects(config, catalog, books, ddr, nvme, gated, plane, hot)  # type: ignore[arg-type]
            sessions = SessionVerbs(catalog, objects, now_ns=now_ns)
            objects.adopt(recovered)
            hot.serve(objects.lives, objects.sharing.dropped)
            hold_to_truth(plane.hot, catalog, objects.lives)
            await objects.room.resize_nvme()
            if check:
                await objects.index.run()
            await books.resize(Tier.DDR, config.ddr.budget_bytes // BLOCK_BYTES)
            yield Tiers(
                config=config,
                catalog=catalog,
                device=device,
                books=books,
                nvme=nvme,
                objects=objects,
                sessions=sessions,
                plane=plane,
                mover=gated,
                hot=hot,
                recovered=recovered,
            )
            await objects.describer.flush()
            assert await device.check() == []
    finally:
        plane.close()
        catalog.close()
        device.close()
