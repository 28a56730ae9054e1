"""The transport for bridges: a Unix socket that only its user can open, or a loopback port and a key where there are none.

Each connection begins with one line each way (`bridge.meeting`) and goes on as a conversation of `inbound.stdio`. Who calls is
what the kernel says about the other end. What a bridge says about its client's folder and environment is handed to `settle`, which
makes a caller of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import pwd
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from taskgate import __version__, clock
from taskgate.bridge.meeting import HELLO_S, REPLACED, STOPPED, goodbye, is_older, read, refusal, welcome
from taskgate.core.errors import TaskgateError
from taskgate.core.identity import Caller
from taskgate.core.scoping.registry import SessionRequest
from taskgate.core.wire import Reader
from taskgate.gateway.gateway import Gateway
from taskgate.inbound.stdio import LineOutlet, StdioEndpoint
from taskgate.telemetry.logs import log

MOST_BRIDGES: Final = 1000
READ_LIMIT: Final = 1 << 20
_PEER: Final = (socket.SOL_SOCKET, socket.SO_PEERCRED, 12) if hasattr(socket, "SO_PEERCRED") else (0, 1, 76)


@dataclass(frozen=True, slots=True)
class Client:
    """Who is at the other end of a bridge, and where they stand."""

    principal: str
    scope: str | None
    folder: str
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Talk:
    endpoint: StdioEndpoint
    writer: asyncio.StreamWriter
    place: str


class LocalEndpoint:
    """Accepts bridges on a socket that is bound already. `key`: what they must show where the kernel does not tell who they are."""

    def __init__(
        self,
        gateway: Gateway,
        reader: Reader,
        listening: socket.socket,
        key: str,
        settle: Callable[[Client], Awaitable[Caller]],
        *,
        make_room: Callable[[], None],
        busy: Callable[[], Awaitable[bool]],
    ) -> None:
        self._gateway = gateway
        self._reader = reader
        self._listening = listening
        self._key = key
        self._settle = settle
        self._make_room = make_room
        self._busy = busy
        self._talks: set[Talk] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self.leaving = STOPPED
        """Why bridges are left, once they are."""

    def __len__(self) -> int:
        """How many bridges are being served or greeted."""
        return len(self._connections)

    @property
    def places(self) -> frozenset[str]:
        """Where the clients that are here now stand."""
        return frozenset(talk.place for talk in self._talks)

    def open(self) -> None:
        self._listening.setblocking(False)
        self._listening.listen(128)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def close(self) -> None:
        """Nobody new; what is left of the conversations ends."""
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

    async def drain(self, within_s: float, hurry: asyncio.Event) -> None:
        """What is under way may end; then every bridge is told why it is left."""
        await self.stop_accepting()
        talks = list(self._talks)
        await asyncio.gather(*(talk.endpoint.drain(within_s, hurry) for talk in talks), return_exceptions=True)
        for talk in talks:
            talk.writer.write(goodbye(self.leaving))
            with contextlib.suppress(OSError, RuntimeError):
                talk.writer.write_eof()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                made, _ = await loop.sock_accept(self._listening)
            except OSError as problem:
                log.warning("a bridge could not be accepted", problem=str(problem))
                await clock.sleep(0.1)
                continue
            if len(self._connections) >= MOST_BRIDGES:
                made.close()
                continue
            connection = loop.create_task(self._serve(made))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

    async def _serve(self, made: socket.socket) -> None:
        """One bridge, from its first line to its last."""
        try:
            principal = self._principal(made)
            if principal is None:
                made.close()
                return
            opened = asyncio.open_connection if self._key else asyncio.open_unix_connection
            reader, writer = await opened(sock=made, limit=READ_LIMIT)
        except OSError:
            made.close()
            return
        try:
            await self._greet(principal, reader, writer)
        except (OSError, ValueError, TimeoutError, asyncio.LimitOverrunError) as problem:
            log.info("a bridge was refused", problem=str(problem) or type(problem).__name__)
        except Exception as fault:  # one connection: it breaks for this bridge only
            log.error("a bridge's conversation failed", exc_info=fault)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _greet(self, principal: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HELLO_S):
            said = read(await reader.readuntil(b"\n"), "bridge")
        if self._key and not hmac.compare_digest(str(said.get("key", "")).encode(), self._key.encode()):
            raise ValueError("the key is wrong")
        if said.get("replace") or await self._is_outdated(said):
            log.info("making room for another gateway", version=said.get("version"))
            writer.write(refusal(__version__, "This gateway makes room.", replaced=True))
            self.leaving = REPLACED
            self._make_room()
            return
        try:
            caller = await self._settle(_client(principal, said))
        except TaskgateError as problem:
            writer.write(refusal(__version__, problem.message))
            return
        writer.write(welcome(__version__, os.getpid()))
        await self._converse(caller, reader, writer)

    async def _is_outdated(self, said: Mapping[str, Any]) -> bool:
        """A newer bridge replaces an older gateway that has nobody else to serve; else it is served as it is."""
        if not is_older(__version__, str(said.get("version", ""))):
            return False
        return len(self._connections) <= 1 and not await self._busy()

    async def _converse(self, caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        endpoint = StdioEndpoint(self._gateway, caller, SessionRequest(), self._reader)
        talk = Talk(endpoint, writer, caller.place)
        self._talks.add(talk)
        try:
            await endpoint.converse(reader, LineOutlet(writer.transport))
        finally:
            self._talks.discard(talk)

    def _principal(self, made: socket.socket) -> str | None:
        """The user at the other end; None if it is not ours. Behind the loopback key is whoever can read our files: us."""
        uid = os.geteuid() if self._key else peer_uid(made)
        if uid != os.geteuid():
            log.warning("a bridge of another user was turned away", uid=uid)
            return None
        return local_principal(uid)


def peer_uid(made: socket.socket) -> int | None:
    """Which user the kernel says is at the other end of a Unix socket; None if it does not say."""
    # Linux: a `struct ucred` is process, user, group. macOS and the BSDs: a `struct xucred` begins with its version and the user.
    level, name, size = _PEER
    try:
        return int(struct.unpack("ii", made.getsockopt(level, name, size)[:8])[1])
    except (OSError, struct.error):
        return None


def local_principal(uid: int) -> str:
    """Who a user of this machine is to the gateway."""
    try:
        return f"local:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"local:{uid}"


def _client(principal: str, said: Mapping[str, Any]) -> Client:
    environment = said.get("environment")
    known = environment.items() if isinstance(environment, dict) else ()
    scope = said.get("scope")
    return Client(
        principal,
        scope if isinstance(scope, str) else None,
        str(said.get("folder") or ""),
        {str(name): value for name, value in known if isinstance(value, str)},
    )
