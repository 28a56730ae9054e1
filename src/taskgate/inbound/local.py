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
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from taskgate import __version__, clock
from taskgate.access.authorize import AccessRefused, Authorizer
from taskgate.access.proof import LocalProof
from taskgate.bridge.meeting import (
    HELLO_S,
    REPLACED,
    STOPPED,
    Meeting,
    connect,
    goodbye,
    is_older,
    make_room,
    monotonic,
    read,
    refusal,
    sleep,
    welcome,
)
from taskgate.core.errors import TaskgateError
from taskgate.core.identity.access import Access
from taskgate.core.identity.caller import Caller
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.wire import MessageReader
from taskgate.folders import socket_folder
from taskgate.gateway.services.transports import TransportServices
from taskgate.held_folder import lost
from taskgate.inbound.stdio import LineOutlet, StdioEndpoint
from taskgate.telemetry.logs import log

MOST_BRIDGES: Final = 1000
READ_LIMIT: Final = 1 << 20
_PEER: Final = (socket.SOL_SOCKET, socket.SO_PEERCRED, 12) if hasattr(socket, "SO_PEERCRED") else (0, 1, 76)


@dataclass(frozen=True, slots=True)
class Client:
    """Who is at the other end of a bridge, and where they stand."""

    proof: LocalProof
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
        gateway: TransportServices,
        reader: MessageReader,
        listening: socket.socket,
        key: str,
        settle: Callable[[Client], Awaitable[Caller]],
        *,
        authorizer: Authorizer,
        make_room: Callable[[], None],
        busy: Callable[[], Awaitable[bool]],
    ) -> None:
        self._gateway = gateway
        self._reader = reader
        self._listening = listening
        self._key = key
        self._settle = settle
        self._authorizer = authorizer
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
            await self._greet(peer, reader, writer)
        except (OSError, ValueError, TimeoutError, asyncio.LimitOverrunError) as problem:
            log.info("a bridge was refused", problem=str(problem) or type(problem).__name__)
        except Exception as fault:  # one connection: it breaks for this bridge only
            log.error("a bridge's conversation failed", exc_info=fault)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _greet(self, peer: LocalProof, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HELLO_S):
            said = read(await reader.readuntil(b"\n"), "bridge")
        if self._key:
            shown = hmac.compare_digest(str(said.get("key", "")).encode(), self._key.encode())
            peer = self._authenticated(LocalProof(peer.principal, proved=shown))
        if said.get("replace") or await self._is_outdated(said):
            log.info("making room for another gateway", version=said.get("version"))
            writer.write(refusal(__version__, "This gateway makes room.", replaced=True))
            self.leaving = REPLACED
            self._make_room()
            return
        try:
            caller = await self._settle(_client(peer, said))
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

    def _peer(self, made: socket.socket) -> LocalProof:
        """The user at the other end, as the kernel names it. On a loopback port the key must prove it, which comes later."""
        if self._key:
            return LocalProof(local_principal(os.geteuid()), proved=True)
        uid = peer_uid(made)
        named = local_principal(uid) if uid is not None else "local:unknown"
        try:
            return self._authenticated(LocalProof(named, proved=uid == os.geteuid()))
        except ValueError:
            log.warning("a bridge of another user was refused", uid=uid)
            return LocalProof(named, proved=False)

    def _authenticated(self, proof: LocalProof) -> LocalProof:
        """Raises ValueError."""
        try:
            self._authorizer.admit(proof, Access.LOGIN)
        except AccessRefused as refused:
            raise ValueError(refused.text) from None
        return proof


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


def _client(proof: LocalProof, said: Mapping[str, Any]) -> Client:
    environment = said.get("environment")
    known = environment.items() if isinstance(environment, dict) else ()
    scope = said.get("scope")
    return Client(
        proof,
        scope if isinstance(scope, str) else None,
        str(said.get("folder") or ""),
        {str(name): value for name, value in known if isinstance(value, str)},
    )


# Where bridges find this gateway: the claim to be the one for its state folder and configuration, its socket and its
# record.
#
# A claim is a lock that the kernel releases with the process. Whoever holds it may remove what a crashed gateway left
# behind.

ROOM_S: Final = 40.0
"""For the gateway before us to drain and end."""
ON_DEMAND, SERVE = "on-demand", "serve"
_LOOK_EVERY_S: Final = 0.05


class AddressTaken(Exception):
    """Another gateway serves this state folder and configuration."""


class LocalAddress:
    def __init__(self, meeting: Meeting, claim: int, kind: str) -> None:
        self.meeting = meeting
        self.kind = kind
        self.key = ""
        self._claim = claim
        found = os.fstat(claim)
        self._identity = (found.st_dev, found.st_ino)
        self._path: str | None = None
        self._address = ""

    def bind(self, environment: Mapping[str, str]) -> socket.socket:
        """A socket that only this user can open; a loopback port with a key where there can be none."""
        if hasattr(socket, "AF_UNIX"):
            with contextlib.suppress(OSError):
                return self._bind_unix(os.path.join(socket_folder(environment, self.meeting.state), self.meeting.key))
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.bind(("127.0.0.1", 0))
        self.key = secrets.token_urlsafe(32)
        self._address = f"tcp:127.0.0.1:{listening.getsockname()[1]}"
        return listening

    def _bind_unix(self, base: str) -> socket.socket:
        path = f"{base}.sock"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The folder is closed to others; the mode is for whoever opens the folder one day.
            listening.bind(path)
            os.chmod(path, 0o600)
        except OSError:
            listening.close()
            raise
        self._path, self._address = path, f"unix:{path}"
        return listening

    def publish(self, url: str) -> None:
        """From now on bridges and commands find us."""
        record = {
            "address": self._address,
            "key": self.key,
            "pid": os.getpid(),
            "version": __version__,
            "url": url,
            "config": os.path.abspath(self.meeting.config) if self.meeting.config is not None else None,
            "kind": self.kind,
            "since": int(clock.wall()),
        }
        self.meeting.publish(record)

    def lost(self) -> str | None:
        """Why another gateway could claim this address although we hold the lock: the locked file is gone. Otherwise None."""
        return lost(self.meeting.path_of("lock"), self._identity)

    def withdraw(self) -> None:
        """No bridge finds us any more; the claim stays until `release`, so that none starts another beside us."""
        if self.lost() is not None:
            return  # the record and the socket may be those of the next gateway
        self.meeting.withdraw()
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def release(self) -> None:
        os.close(self._claim)


def claim(meeting: Meeting, kind: str) -> LocalAddress:
    """Become the gateway of this state folder and configuration. Raises AddressTaken.

    A gateway that a person starts takes the place of one that bridges started: that one drains and ends first.
    """
    held = meeting.try_lock("lock")
    record = meeting.record()
    if held is None and kind == SERVE and record is not None and record.get("kind") == ON_DEMAND:
        _ask_to_make_room(meeting)
        deadline = monotonic() + ROOM_S
        while held is None and monotonic() < deadline:
            sleep(_LOOK_EVERY_S)
            held = meeting.try_lock("lock")
    if held is None:
        pid = record.get("pid", "unknown") if record is not None else "unknown"
        raise AddressTaken(f"Another gateway (process {pid}) serves this configuration already.")
    return LocalAddress(meeting, held, kind)


def _ask_to_make_room(meeting: Meeting) -> None:
    record = meeting.record()
    found = connect(record) if record is not None else None
    if found is not None:
        made, key = found
        with contextlib.suppress(OSError), made:
            made.sendall(make_room(__version__, key))
            made.recv(65536)
