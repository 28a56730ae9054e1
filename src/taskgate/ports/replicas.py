"""The gateways that share a store, as their leases show them."""

from __future__ import annotations

import msgspec


class Replica(msgspec.Struct, frozen=True):
    """One gateway. `configuration` is a digest of its settings; `seen_ms` is when it last renewed its lease."""

    owner: str
    address: str
    version: str
    configuration: str
    started_ms: int
    seen_ms: int
    internal: str = ""
    """The address at which other gateways reach it (`listen.internal`); empty if there is none."""
    interpreter: str = ""
    """The version of its interpreter of scripts; empty if it runs none."""
