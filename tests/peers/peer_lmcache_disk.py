"""LMCache ``local_disk``."""

from peer_lmcache import Disk as Peer

__all__ = ["Peer"]
