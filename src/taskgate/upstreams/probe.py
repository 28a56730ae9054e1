"""Which generation does a server speak? Ask the stateless question first, fall back to the stateful handshake.

A stateless server answers `server/discover`; anything else, or nothing in time, means a handshake (basic/versioning: an unknown
error to a stateless request is how an older server shows itself). The verdict is kept by the server's owner until it reconnects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskgate.core import wire
from taskgate.core.errors import Executed, UpstreamError
from taskgate.core.generations import NEWEST_STATELESS
from taskgate.core.wire import Message
from taskgate.upstreams.flight import HttpRefusal
from taskgate.upstreams.stateless_link import StatelessLink, description_in


async def discovered(link: StatelessLink, timeout_s: float) -> Mapping[str, Any] | None:
    """The server's self-description if it is stateless, None if it must be greeted the older way."""
    try:
        message = await link.discover(timeout_s)
        error = bytes(message.raw_error) if message.raw_error is not None else None
    except HttpRefusal as refusal:
        message, error = None, refusal.error
    except UpstreamError as problem:
        if problem.executed is Executed.NO:
            raise
        return None
    if error is not None and _names_our_revision(error):
        message = await _once_more(link, timeout_s)
    return description_in(message) if message is not None else None


async def _once_more(link: StatelessLink, timeout_s: float) -> Message | None:
    try:
        return await link.discover(timeout_s)
    except UpstreamError:
        return None


def _names_our_revision(error: bytes) -> bool:
    """A refusal of our revision that names it as supported is worth one more try (basic/versioning: -32022)."""
    value = wire.parse_strictly(error)
    data = value.get("data")
    supported = data.get("supported") if type(data) is dict else None
    return value.get("code") == -32022 and type(supported) is list and NEWEST_STATELESS in supported
