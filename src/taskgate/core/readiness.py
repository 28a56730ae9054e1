"""Whether a gateway should receive new requests, and which of them it would refuse."""

from __future__ import annotations

import msgspec


class Readiness(msgspec.Struct, frozen=True):
    ready: bool
    """Whether load balancers should send requests here."""
    degraded: tuple[str, ...] = ()
    """What is currently refused."""


def readiness_of(*, serving: bool, store_unavailable: bool, shared: bool, passthrough: bool) -> Readiness:
    """Return the readiness of a gateway.

    `serving`: started and not draining. `shared`: other gateways use the same store. `passthrough`: plain calls continue without
    the store (`store.unsafe_degraded_passthrough`), so a gateway without its store can still serve them.
    """
    if not store_unavailable:
        return Readiness(serving)
    if not shared:
        return Readiness(False, ("tasks", "approvals"))
    if passthrough:
        return Readiness(serving, ("tasks", "approvals", "sessions_of_other_gateways"))
    return Readiness(False, ("plain_calls", "tasks", "approvals", "sessions_of_other_gateways"))
