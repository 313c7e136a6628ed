"""LMCache ``fs://``."""

from peer_lmcache import Fs as Peer

__all__ = ["Peer"]
