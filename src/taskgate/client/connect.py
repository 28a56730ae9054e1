"""Open a session: `async with connect(url | command) as session`.

Selects the transport, negotiates the protocol generation (stateless first, then the handshake), and closes everything at
the end of the block.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from taskgate.client.dialect import Dialect
from taskgate.client.errors import (
    CannotConnect,
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
from taskgate.client.session import Session
from taskgate.client.stateful import Stateful, initialize_session
from taskgate.client.stateless import (
    CAPABILITY_MISSING,
    GATEWAY,
    HEADER_MISMATCH,
    VERSION,
    VERSION_UNSUPPORTED,
    Stateless,
    discover,
)
from taskgate.client.stdio import Stdio
from taskgate.client.streamable_http import StreamableHttp
from taskgate.client.transport import Login, Transport


async def negotiate(transport: Transport, options: Options) -> Dialect:
    """Negotiate the protocol generation. Raises VersionUnsupported."""
    if options.generation is Generation.STATEFUL:
        return await initialize_session(transport, options, options.connect_timeout)
    dialect, reason = await _try_stateless(transport, options)
    if dialect is not None:
        return dialect
    if options.generation is Generation.STATELESS:
        raise VersionUnsupported(f"the server does not support MCP {VERSION}{_because(reason)}") from reason
    await transport.restart()
    try:
        return await initialize_session(transport, options, options.connect_timeout)
    except ServerError as error:
        if isinstance(reason, ServerError) and reason.code == -32601 and error.code == -32601:
            # Neither a handshake nor discovery: assume a stateless server without discovery.
            transport.settle(VERSION, stateful=False)
            return Stateless(options)
        if isinstance(reason, DeadlineExceeded) and error.code == VERSION_UNSUPPORTED:
            # The server was slow to start; discover again.
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
            raise  # only stateless servers use these codes, so a handshake would fail
        return None, error
    except (HttpRefusal, InvalidReply, DeadlineExceeded, ConnectionLost) as error:
        return None, error


def _because(reason: ClientError | None) -> str:
    return f" ({reason})" if reason is not None else ""


@asynccontextmanager
async def connect(
    target: str | Sequence[str],
    *,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    tls: ssl.SSLContext | None = None,
    auth: Login | None = None,
    ticket: Mapping[str, Any] | None = None,
    generation: Generation | str | None = None,
    **settings: Any,
) -> AsyncIterator[Session]:
    """Open a session with the server at a URL (a string) or of a command (a sequence of strings).

    - `token`: bearer token. `auth`: OAuth login for servers that require it (`taskgate.client.oauth`).
    - `tls`: SSL context, for example with a private CA.
    - `env`: environment variables for the command, in addition to the few that a child process inherits.
    - `generation`: `stateful` (2025-11-25 and older) or `stateless` (2026-07-28). By default both are tried, the newer one first.
    - `settings`: fields of `Options`. `elicitation`, `sampling` and `roots` answer the server's questions; `on_notification` and
      `on_expiry` are callbacks; the rest are timeouts and limits.
    """
    options = Options(generation=None if generation is None else Generation(generation), **settings)
    session = Session(options)
    transport: Transport | None = None
    identified = token is not None or auth is not None or "authorization" in {name.lower() for name in headers or ()}
    try:
        if isinstance(target, str):
            bearer = {"authorization": f"Bearer {token}"} if token else {}
            transport = StreamableHttp(
                target, {**bearer, **(headers or {})}, options, session.deliver, tls=tls, login=auth
            )
        else:
            transport = await _start(target, env, cwd, options, session)
        try:
            dialect = _rejoin(transport, ticket) if ticket is not None else await negotiate(transport, options)
            if isinstance(dialect, Stateless) and dialect.server_info.get("name") == GATEWAY and not identified:
                dialect.name_client(f"{options.client_name} {secrets.token_hex(8)}")
            await session.begin(transport, dialect)
        except ClientError as error:
            error.no_call_was_sent()
            raise
        yield session
    finally:
        await session.close()
        if transport is not None:
            await transport.close()


async def _start(
    command: Sequence[str], env: Mapping[str, str] | None, cwd: str | None, options: Options, session: Session
) -> Transport:
    if not command:
        raise CannotConnect("the command is empty")
    transport = Stdio(command, env, cwd, options, session.deliver)
    try:
        await transport.start()
    except ClientError:
        await transport.close()
        raise
    return transport


def _rejoin(transport: Transport, ticket: Mapping[str, Any]) -> Stateful:
    """Continue the session of a ticket, without a handshake."""
    session_id, initialized = ticket.get("session_id"), ticket.get("initialized")
    if (
        not isinstance(transport, StreamableHttp)
        or not isinstance(session_id, str)
        or not isinstance(initialized, dict)
    ):
        raise CannotConnect("this is not a ticket for a session over HTTP")
    dialect = Stateful(initialized)
    transport.rejoin(session_id, dialect.version)
    return dialect
