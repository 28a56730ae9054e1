"""Convert the last reply of a server into the result for the caller, or raise its error."""

from __future__ import annotations

from taskgate.core import wire
from taskgate.core.generations.stateless import CACHEABLE, cached_privately, complete
from taskgate.ports.upstream import (
    ErrorReply,
    RelayedError,
    Reply,
)


def unwrap(reply: Reply, hide: frozenset[int] = frozenset()) -> bytes:
    if isinstance(reply, ErrorReply):
        if reply.code in hide:
            error = wire.parse_strictly(reply.raw)
            raise RelayedError(wire.encode({**error, "code": -32603}), -32603)
        raise RelayedError(reply.raw, reply.code)
    return reply.raw


def up_to_stateless(result: bytes, method: str) -> bytes:
    """A stateful result as a stateless caller expects it."""
    return cached_privately(result) if method in CACHEABLE else complete(result)
