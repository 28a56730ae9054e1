"""Convert the last reply of a server into the result for the caller, or raise its error."""

from __future__ import annotations

from taskgate.core import wire
from taskgate.core.generations.stateless import CACHEABLE, cached_privately, mark_complete
from taskgate.ports.upstream_replies import ErrorReply, RelayedError, Reply


def unwrap(reply: Reply, hidden: frozenset[int] = frozenset()) -> bytes:
    """The result of a reply. Raises RelayedError for an error; codes in `hidden` become internal errors."""
    if isinstance(reply, ErrorReply):
        if reply.code in hidden:
            error = wire.parse_strictly(reply.raw)
            raise RelayedError(wire.encode({**error, "code": -32603}), -32603)
        raise RelayedError(reply.raw, reply.code)
    return reply.raw


def as_stateless_result(result: bytes, method: str) -> bytes:
    """Add the fields to a stateful result that a stateless caller requires."""
    return cached_privately(result) if method in CACHEABLE else mark_complete(result)
