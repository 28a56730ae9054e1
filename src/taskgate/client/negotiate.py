"""Finds out which generation a server speaks: the stateless one is tried first, the handshake second.

Called by `connect` once per session, and again after a server forgot its session.
"""

from __future__ import annotations

from taskgate.client.dialects import (
    CAPABILITY_MISSING,
    HEADER_MISMATCH,
    VERSION,
    VERSION_UNSUPPORTED,
    Dialect,
    Stateless,
    discover,
    shake_hands,
)
from taskgate.client.errors import (
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    HttpRefusal,
    InvalidReply,
    ServerError,
    Unauthorized,
    VersionUnsupported,
)
from taskgate.client.options import Generation, Options
from taskgate.client.transport import Transport


async def negotiate(transport: Transport, options: Options) -> Dialect:
    """Agree on a dialect, or say why there is none."""
    if options.generation is Generation.STATEFUL:
        return await shake_hands(transport, options, options.connect_timeout)
    dialect, reason = await _try_stateless(transport, options)
    if dialect is not None:
        return dialect
    if options.generation is Generation.STATELESS:
        raise VersionUnsupported(f"the server does not speak MCP {VERSION}{_because(reason)}") from reason
    await transport.restart()
    try:
        return await shake_hands(transport, options, options.connect_timeout)
    except ServerError as error:
        if isinstance(reason, ServerError) and reason.code == -32601 and error.code == -32601:
            # Neither a handshake nor discovery: a stateless server that left out discovery still answers calls.
            transport.settle(VERSION, stateful=False)
            return Stateless(options)
        if isinstance(reason, DeadlineExceeded) and error.code == VERSION_UNSUPPORTED:
            # It was only slow to start.
            late = await discover(transport, options, options.connect_timeout)
            if late is not None:
                return late
        raise VersionUnsupported(f"the server refused the handshake: {error}") from error


async def _try_stateless(transport: Transport, options: Options) -> tuple[Stateless | None, ClientError | None]:
    try:
        return await discover(transport, options, options.probe_timeout), None
    except Unauthorized:
        raise
    except ServerError as error:
        if error.code in (HEADER_MISMATCH, CAPABILITY_MISSING):
            raise  # only a stateless server knows these codes, so the handshake would not help
        return None, error
    except (HttpRefusal, InvalidReply, DeadlineExceeded, ConnectionLost) as error:
        return None, error


def _because(reason: ClientError | None) -> str:
    return f" ({reason})" if reason is not None else ""
