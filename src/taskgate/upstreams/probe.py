"""Determine whether a server supports the stateless generation.

A stateless server answers `server/discover`. Any other reply, or none in time, means that the stateful handshake is
needed (basic/versioning: an older server returns an unknown error to a stateless request).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.errors import Executed, UpstreamError
from taskgate.core.generations.generation import NEWEST_STATELESS
from taskgate.core.wire import Message
from taskgate.upstreams.failures import HttpRefusal
from taskgate.upstreams.stateless_link import StatelessLink, description_in

UNAUTHORIZED: Final = 401


async def discovered(link: StatelessLink, timeout_s: float) -> Mapping[str, Any] | None:
    """Return the server's description if it is stateless, or None if it needs the stateful handshake.

    Raises HttpRefusal if it rejects the credentials, which does not show its generation.
    """
    try:
        message = await link.discover(timeout_s)
        error = bytes(message.raw_error) if message.raw_error is not None else None
    except HttpRefusal as refusal:
        if refusal.status == UNAUTHORIZED:
            raise
        message, error = None, refusal.error
    except UpstreamError as problem:
        if problem.executed is Executed.NO:
            raise
        return None
    if error is not None and _names_our_revision(error):
        message = await _retry_discover(link, timeout_s)
    return description_in(message) if message is not None else None


async def _retry_discover(link: StatelessLink, timeout_s: float) -> Message | None:
    try:
        return await link.discover(timeout_s)
    except UpstreamError:
        return None


def _names_our_revision(error: bytes) -> bool:
    """Return whether an error lists our revision as supported, so that a retry makes sense (basic/versioning: -32022)."""
    value = wire.parse_strictly(error)
    data = value.get("data")
    supported = data.get("supported") if type(data) is dict else None
    return value.get("code") == -32022 and type(supported) is list and NEWEST_STATELESS in supported
