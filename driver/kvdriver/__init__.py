"""Drives the page-table engine, in process or on a card, through one Device interface."""

from kvdriver.abi import Status, Tier
from kvdriver.address import DeviceAddress
from kvdriver.carddevice import CardDevice
from kvdriver.device import (
    BLOCK_BYTES,
    Capabilities,
    Command,
    Completion,
    Device,
    DeviceStatistics,
    EngineError,
    Lease,
    Map,
    MapRun,
    QuerySession,
    QueryTier,
    Remap,
    Reserve,
    Resize,
    Run,
    SessionCreate,
    SessionDestroy,
    SessionInfo,
    TierInfo,
    Translate,
    Unmap,
)
from kvdriver.faults import DeviceFault, FaultKind
from kvdriver.inprocess import InProcessDevice, run
from kvdriver.opening import open_bare, open_resilient
from kvdriver.resilient import EngineState, ResilientDevice

__all__ = [
    "BLOCK_BYTES",
    "Capabilities",
    "CardDevice",
    "Command",
    "Completion",
    "Device",
    "DeviceAddress",
    "DeviceFault",
    "DeviceStatistics",
    "EngineError",
    "EngineState",
    "FaultKind",
    "InProcessDevice",
    "Lease",
    "Map",
    "MapRun",
    "QuerySession",
    "QueryTier",
    "Remap",
    "Reserve",
    "ResilientDevice",
    "Resize",
    "Run",
    "SessionCreate",
    "SessionDestroy",
    "SessionInfo",
    "Status",
    "Tier",
    "TierInfo",
    "Translate",
    "Unmap",
    "open_bare",
    "open_resilient",
    "run",
]
