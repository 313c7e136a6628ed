"""A client of kvd: sessions, leases and whole objects, for programs on the same machine.

Needs nothing but Python; NumPy, PyTorch or trio only where their views or `TrioClient` are used::

    with Client() as kvd:
        known = kvd.match_prefix("/llm/blocks", hashes)
        with kvd.lease("/llm/blocks/" + hashes[0], for_s=30):
            array = kvd.map("/llm/blocks/" + hashes[0]).numpy("float16")
"""

from kvd.client.calls import ClientError, Entry
from kvd.client.mapping import Mapping
from kvd.client.sync import Client, Lease, Session

__all__ = ["Client", "ClientError", "Entry", "Lease", "Mapping", "Session"]
