"""The gateways that share a store, as each of them is seen by the others."""

from __future__ import annotations

import msgspec


class Replica(msgspec.Struct, frozen=True):
    """One gateway as its lease shows it. `configuration` is a digest of its settings, `seen_ms` when it last renewed the lease."""

    owner: str
    address: str
    version: str
    configuration: str
    started_ms: int
    seen_ms: int
    internal: str = ""
    """Where other gateways reach it (`listen.internal`); empty where it cannot be reached."""
