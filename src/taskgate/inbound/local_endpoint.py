"""Accept bridges on a Unix socket that only its user can open, or on a loopback port with a key if there are no Unix sockets.

Each connection starts with one line in each direction (`bridge.handshake`) and continues as `inbound.stdio`. The caller
is the user that the kernel reports for the peer. `make_caller` turns the client's folder and environment, as reported
by the bridge, into a caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from taskgate import __version__, clock
from taskgate.access.authorize import AccessRefused, Authorizer
from taskgate.access.proof import LocalProof
from taskgate.bridge.handshake import HELLO_S, REPLACED, STOPPED, closing_frame, is_older, read, refusal, welcome
from taskgate.core.errors import TaskgateError
from taskgate.core.identity.access import Access
from taskgate.core.identity.caller import Caller
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.wire import MessageReader
from taskgate.gateway.services.transports import TransportServices
from taskgate.inbound.peer_user import local_principal
from taskgate.inbound.stdio import LineOutlet, StdioEndpoint
from taskgate.operating_system import own_user, peer_user
from taskgate.telemetry.logs import log

MAX_BRIDGES: Final = 1000
READ_LIMIT: Final = 1 << 20


class Client(msgspec.Struct, frozen=True):
    """The client of a bridge: its user, scope, folder and environment."""

    proof: LocalProof
    scope: str | None
    folder: str
    variables: Mapping[str, str]


class BridgeSession(msgspec.Struct, frozen=True):
    endpoint: StdioEndpoint
    writer: asyncio.StreamWriter
    place: str


class LocalEndpoint:
    """Serves bridges on a bound socket. `key`: required from bridges if the kernel cannot report their user."""

    def __init__(
        self,
        gateway: TransportServices,
        reader: MessageReader,
        listening: socket.socket,
        key: str,
        make_caller: Callable[[Client], Awaitable[Caller]],
        *,
        authorizer: Authorizer,
        stop_for_replacement: Callable[[], None],
        busy: Callable[[], Awaitable[bool]],
    ) -> None:
        self._gateway = gateway
        self._reader = reader
        self._listening = listening
        self._key = key
        self._make_caller = make_caller
        self._authorizer = authorizer
        self._stop_for_replacement = stop_for_replacement
        self._busy = busy
        self._sessions: set[BridgeSession] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self.leaving = STOPPED
        """The reason sent to bridges when the gateway closes their connections."""

    def __len__(self) -> int:
        """Number of bridge connections, including those in the handshake."""
        return len(self._connections)

    @property
    def places(self) -> frozenset[str]:
        """The folders of the connected clients."""
        return frozenset(session.place for session in self._sessions)

    def open(self) -> None:
        self._listening.setblocking(False)
        self._listening.listen(128)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def close(self) -> None:
        """Stop accepting and end all conversations."""
        await self.stop_accepting()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def stop_accepting(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._accepting = None
        self._listening.close()

    async def drain(self, within_s: float, skip_waiting: asyncio.Event) -> None:
        """Wait for requests in progress, then send every bridge the reason for closing."""
        await self.stop_accepting()
        sessions = list(self._sessions)
        await asyncio.gather(
            *(session.endpoint.drain(within_s, skip_waiting) for session in sessions), return_exceptions=True
        )
        for session in sessions:
            session.writer.write(closing_frame(self.leaving))
            with contextlib.suppress(OSError, RuntimeError):
                session.writer.write_eof()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                made, _ = await loop.sock_accept(self._listening)
            except OSError as problem:
                log.warning("accepting a bridge failed", problem=str(problem))
                await clock.sleep(0.1)
                continue
            if len(self._connections) >= MAX_BRIDGES:
                made.close()
                continue
            connection = loop.create_task(self._serve(made))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

    async def _serve(self, made: socket.socket) -> None:
        """Serve one bridge until it disconnects."""
        try:
            peer = self._peer(made)
            if not peer.proved:
                made.close()
                return
            opened = asyncio.open_connection if self._key else asyncio.open_unix_connection
            reader, writer = await opened(sock=made, limit=READ_LIMIT)
        except OSError:
            made.close()
            return
        try:
            await self._handshake(peer, reader, writer)
        except (OSError, ValueError, TimeoutError, asyncio.LimitOverrunError) as problem:
            log.info("bridge rejected", problem=str(problem) or type(problem).__name__)
        except Exception as fault:  # a bug must affect this bridge only
            log.error("bridge failed with an internal error", exc_info=fault)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _handshake(self, peer: LocalProof, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HELLO_S):
            hello = read(await reader.readuntil(b"\n"), "bridge")
        if self._key:
            shown = hmac.compare_digest(str(hello.get("key", "")).encode(), self._key.encode())
            peer = self._authenticated(LocalProof(peer.principal, proved=shown))
        if hello.get("replace") or await self._is_outdated(hello):
            log.info("stopping for another gateway", version=hello.get("version"))
            writer.write(refusal(__version__, "This gateway is stopping to be replaced.", replaced=True))
            self.leaving = REPLACED
            self._stop_for_replacement()
            return
        try:
            caller = await self._make_caller(_client(peer, hello))
        except TaskgateError as problem:
            writer.write(refusal(__version__, problem.message))
            return
        writer.write(welcome(__version__, os.getpid()))
        await self._converse(caller, reader, writer)

    async def _is_outdated(self, hello: Mapping[str, Any]) -> bool:
        """Return whether a newer bridge should replace this gateway: only if it serves no other client and has no work."""
        if not is_older(__version__, str(hello.get("version", ""))):
            return False
        return len(self._connections) <= 1 and not await self._busy()

    async def _converse(self, caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        endpoint = StdioEndpoint(self._gateway, caller, SessionRequest(), self._reader)
        session = BridgeSession(endpoint, writer, caller.place)
        self._sessions.add(session)
        try:
            await endpoint.converse(reader, LineOutlet(writer.transport))
        finally:
            self._sessions.discard(session)

    def _peer(self, made: socket.socket) -> LocalProof:
        """Return the peer's user as reported by the kernel. On a loopback port the key is checked later."""
        if self._key:
            return LocalProof(local_principal(own_user()), proved=True)
        uid = peer_user(made)
        named = local_principal(uid) if uid is not None else "local:unknown"
        try:
            return self._authenticated(LocalProof(named, proved=uid == own_user()))
        except ValueError:
            log.warning("bridge of another user rejected", uid=uid)
            return LocalProof(named, proved=False)

    def _authenticated(self, proof: LocalProof) -> LocalProof:
        """Raises ValueError."""
        try:
            self._authorizer.admit(proof, Access.LOGIN)
        except AccessRefused as refused:
            raise ValueError(refused.text) from None
        return proof


def _client(proof: LocalProof, hello: Mapping[str, Any]) -> Client:
    environment = hello.get("environment")
    known = environment.items() if isinstance(environment, dict) else ()
    scope = hello.get("scope")
    return Client(
        proof,
        scope if isinstance(scope, str) else None,
        str(hello.get("folder") or ""),
        {str(name): value for name, value in known if isinstance(value, str)},
    )
