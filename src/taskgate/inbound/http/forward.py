"""Requests for what another gateway on the same store holds: a session, or a call that waits between two rounds.

A request for a session that is not here goes to the session's home as it came, and the answer comes back as it leaves there, event
streams piece by piece; a caller that hangs up here hangs up there. When the home has died the session is adopted and the request
answered here, if it certainly had not been sent or asks for nothing that matters twice; else its caller is told that it may have
been executed. Nothing is passed on a second time: the home answers, or says that the session is not there.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

from taskgate import clock
from taskgate.access.authorize import Authorized
from taskgate.core.errors import CallerError, Executed, GatewayFault, TaskgateError, UpstreamError
from taskgate.core.generations.generation import Generation
from taskgate.core.identity.caller import Caller
from taskgate.core.wire import Kind, Message
from taskgate.gateway.methods.shared_sessions import SharedSessions
from taskgate.gateway.own_tools.table import LOCAL_STATE_TOOLS
from taskgate.gateway.requests.client_label import stateless_stream
from taskgate.gateway.requests.replies import stopped_before_reply
from taskgate.gateway.requests.session import Session
from taskgate.gateway.services.transports import TransportServices
from taskgate.inbound.http.asgi import Headers, Send
from taskgate.inbound.http.connection import CallerConnection
from taskgate.inbound.http.handover import WorkerSockets, request_bytes
from taskgate.inbound.http.hop import HOP, NOT_HERE, HopSigner, PostRelay, StreamRelay, passed_on
from taskgate.inbound.http.post import Post
from taskgate.mcp.failures import HttpFailure, Stage
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.reader import HttpReply, OnChunk, OnHead
from taskgate.mcp.http.target import Origin, PreparedTarget
from taskgate.telemetry.logs import log

WAIT_S: Final = 8.0
"""For so long it is tried to find a home that answers: longer than a lease takes to end and a session to be adopted."""
_PAUSE_S: Final = 0.05
_LOOK_S: Final = 0.25
_MOST_KNOWN: Final = 50_000
_MIB: Final = 1024 * 1024
_BACK: Final = frozenset({b"retry-after", b"mcp-session-id", b"www-authenticate", b"allow"})
_AGAIN: Final = frozenset(
    {
        "ping",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "resources/directory/read",
        "skills/list",
        "skills/get",
        "resources/subscribe",
        "resources/unsubscribe",
        "prompts/get",
        "completion/complete",
        "logging/setLevel",
        "tasks/get",
        "tasks/list",
        "tasks/result",
        "tasks/cancel",
    }
)
"""Methods that may be answered once more although they may have been answered before: nothing of it happens twice."""


@dataclass(slots=True, eq=False)
class _Hop:
    """One exchange with a home, and who waits for it."""

    home: str
    work: asyncio.Task[Any]
    home_died: bool = False
    sent: bool = False

    def sending(self) -> None:
        self.sent = True

    def give_up(self) -> None:
        if not self.home_died:
            self.home_died = True
            self.work.cancel()


class _NotYet(Exception):
    """Nobody answers for the session just now; look again in a moment."""


class Forwarder:
    def __init__(
        self,
        gateway: TransportServices,
        shared: SharedSessions,
        signer: HopSigner,
        attach: Callable[[Session], None],
        workers: WorkerSockets | None,
    ) -> None:
        """`attach` gives a session that was adopted its streams; `workers` are the other ones of this machine and parent."""
        self._attach = attach
        self._workers = workers
        self._gateway = gateway
        self._shared = shared
        self._rows = shared.rows
        self._signer = signer
        limit = gateway.limits.result_bytes + _MIB
        self._http = HttpClient(
            connect_timeout_s=2.0, idle_s=60.0, max_connections_per_origin=16_384, max_response_bytes=limit
        )
        self._homes: OrderedDict[str, tuple[str, str, str]] = OrderedDict()
        """Home, principal and scope of sessions, as they were last read."""
        self._open: set[_Hop] = set()
        self._streams: set[asyncio.Task[Any]] = set()
        self._watching: asyncio.Task[None] | None = None

    # Whose is it?

    async def session(self, session_id: str, caller: Caller) -> Session | str | None:
        """The session, if we hold it (now); the name of its home; None if there is no such session of this caller.

        Raises GatewayFault where that cannot be found out.
        """
        until = clock.monotonic() + WAIT_S
        while True:
            try:
                return await self._locate(session_id, caller)
            except _NotYet:
                if clock.monotonic() > until:
                    return None
                await clock.sleep(_PAUSE_S)

    async def _locate(self, session_id: str, caller: Caller) -> Session | str | None:
        session = await self.here(session_id, caller)
        if session is not None:
            return session
        known = self._known_home(session_id, caller)
        if known is not None:
            return known
        kept = await self._rows.find_session(session_id)
        if kept is None or (kept.principal, kept.scope) != (caller.principal, caller.scope):
            return None
        if kept.home == self._rows.owner:
            raise _NotYet
        # A lease that was given back is gone at once; that of a gateway we take for alive may have been since we looked.
        if kept.internal is not None and self._rows.is_alive(kept.home):
            return self._remember(session_id, kept.home, caller) if kept.internal else None
        adopted = await self._gateway.sessions.adopt(session_id, kept.home)
        if adopted is None:
            raise _NotYet
        self._attach(adopted)
        return adopted

    def _known_home(self, session_id: str, caller: Caller) -> str | None:
        """The living gateway that has the session, as it was last read; that one knows whether it still has it."""
        known = self._homes.get(session_id)
        if known is None or known[1] != caller.principal or known[2] != caller.scope:
            return None
        return known[0] if self._rows.is_alive(known[0]) else None

    def _remember(self, session_id: str, home: str, caller: Caller) -> str:
        self._homes[session_id] = (home, caller.principal, caller.scope)
        if len(self._homes) > _MOST_KNOWN:
            self._homes.popitem(last=False)
        return home

    def forget(self, session_id: str) -> None:
        """Its home is not the one that was known."""
        self._homes.pop(session_id, None)

    async def here(self, session_id: str, caller: Caller) -> Session | None:
        """The session, if it certainly is ours. Raises GatewayFault where that cannot be known."""
        if not self._shared.certain:
            await self._shared.verify()
        return self._gateway.sessions.table.find(session_id, caller, clock.monotonic())

    # Messages

    async def answered(self, post: Post, caller: Caller, message: Message | None, session_id: str) -> Session | None:
        """None: its home has answered. A session: it is ours, and the request is to be answered in it.

        Raises GatewayFault or UpstreamError for the caller. None and no answer yet: there is no such session.
        """
        until = clock.monotonic() + WAIT_S
        while True:
            found = self._known_home(session_id, caller) or await self.session(session_id, caller)
            if not isinstance(found, str):
                return found
            if self._workers is not None and post.moved(partial(self._workers.give, found)):
                return None
            if await self._post(post, found, message):
                return None
            self.forget(session_id)
            if clock.monotonic() > until:
                raise _unreachable()
            await clock.sleep(_PAUSE_S)

    async def took(self, post: Post, caller: Caller, message: Message) -> bool:
        """A stateless call that goes on at another gateway, where its first round waits or was answered by a program that only
        that one talks to. Raises for the caller."""
        state = (message.params or {}).get("requestState")
        home, waits_there = self._shared.home_of(state) if state is not None else ("", False)
        if home in (self._rows.owner, ""):
            return message.method == "tools/call" and await self._took_to_its_home(post, caller, message)
        until = clock.monotonic() + WAIT_S
        while self._rows.is_alive(home) and clock.monotonic() < until:
            if await self._post(post, home, message):
                return True
            await clock.sleep(_PAUSE_S)
        if not waits_there:
            return False
        raise UpstreamError(
            "outcome_unknown",
            "The gateway that held this call between two rounds is gone. The call may or may not have taken effect.",
            executed=Executed.MAYBE,
        )

    async def _took_to_its_home(self, post: Post, caller: Caller, message: Message) -> bool:
        """What our own tools keep for a stateless client is at one gateway. Once it has such a home, its other calls go there as
        well: what servers say beside them belongs to it, too."""
        params = message.params or {}
        tool = params.get("name")
        keeps = tool in LOCAL_STATE_TOOLS and self._gateway.keeps_for_clients(caller.scope, tool)
        if not keeps and not self._shared.conversations.any_elsewhere:
            return False
        stream = stateless_stream(caller, params)
        if not stream or not (keeps or self._shared.conversations.is_elsewhere(stream)):
            return False
        until = clock.monotonic() + WAIT_S
        while clock.monotonic() < until:
            home = await self._shared.conversations.home(stream, caller, certain=self._shared.certain)
            if home == self._rows.owner:
                return False
            if await self._post(post, home, message):
                return True
            await clock.sleep(_PAUSE_S)
        raise _unreachable()

    async def _post(self, post: Post, home: str, message: Message | None) -> bool:
        """Whether it was answered. False: it certainly was not executed there, or may be asked once more."""
        assert post.authorized is not None
        relay = PostRelay(post)
        post.cancel_when_lost()
        url = post.path + b"?" + post.query if post.query else post.path
        try:
            reply = await self._exchange(
                home,
                b"POST",
                url,
                post.every_header,
                post.body,
                authorized=post.authorized,
                on_head=relay.on_head,
                on_chunk=relay.on_chunk,
            )
        except HttpFailure as failure:
            return self._broken(relay, failure, message)
        except asyncio.CancelledError:
            if post.disconnected:
                raise
            ended = post.withdrawn
            why = CallerError(ended.reason.value, ended.text, executed=Executed.MAYBE) if ended is not None else None
            self._last_words(relay, message, why or stopped_before_reply(message))
            return True
        if reply.status == NOT_HERE:
            return False
        if relay.begun:
            relay.end(None)
        else:
            headers = [header for header in reply.header_list if header[0] in _BACK]
            await post.respond_whole(reply.status, reply.body, headers)
        return True

    def _broken(self, relay: PostRelay, failure: HttpFailure, message: Message | None) -> bool:
        if failure.executed is Executed.NO:
            return False
        if not relay.begun and (message is None or message.kind is not Kind.REQUEST or message.method in _AGAIN):
            return False
        log.warning("a forwarded request was cut off", why=failure.message)
        self._last_words(
            relay,
            message,
            UpstreamError(
                "outcome_unknown",
                "The gateway that answered this call is gone. The call may or may not have taken effect.",
                executed=Executed.MAYBE,
            ),
        )
        return True

    def _last_words(self, relay: PostRelay, message: Message | None, problem: TaskgateError) -> None:
        post = relay.post
        generation = Generation.STATEFUL if b"mcp-session-id" in post.headers else Generation.STATELESS
        reply = self._gateway.requests.failure(
            problem, message.id if message is not None else None, generation, message
        )
        if relay.begun:
            relay.end(reply.body)
        else:
            post.respond(200 if generation is Generation.STATEFUL else reply.status, reply.body)

    # Streams and ends of sessions

    async def ended(self, url: bytes, headers: Headers, authorized: Authorized, home: str) -> HttpReply:
        """The DELETE of a session. Raises GatewayFault."""
        try:
            return await self._exchange(home, b"DELETE", url, headers, b"", authorized=authorized)
        except HttpFailure:
            raise _unreachable() from None

    def moved(self, connection: CallerConnection, url: bytes, headers: Headers, home: str) -> bool:
        """Whether the home is another worker that has taken the connection, and follows the stream itself."""
        workers, request = self._workers, request_bytes(b"GET", url, headers, b"")
        if workers is None or request is None:
            return False
        return connection.move(lambda descriptor: workers.give(home, descriptor, request))

    async def followed(self, send: Send, url: bytes, headers: Headers, authorized: Authorized, home: str) -> bool:
        """Pass a session's stream on until either side ends it. False: the home does not have the session."""
        queue = StreamRelay()
        work = asyncio.get_running_loop().create_task(
            self._exchange(
                home, b"GET", url, headers, b"", authorized=authorized, on_head=queue.on_head, on_chunk=queue.on_chunk
            )
        )
        work.add_done_callback(queue.over)
        self._streams.add(work)
        try:
            return await queue.pump(send, work)
        finally:
            self._streams.discard(work)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    def end_streams(self) -> None:
        """The gateway goes down: whoever follows a stream through it comes back to another one."""
        for work in self._streams:
            work.cancel()

    # The hop itself

    async def _exchange(
        self,
        home: str,
        method: bytes,
        url: bytes,
        every_header: Headers,
        body: bytes,
        *,
        authorized: Authorized,
        on_head: OnHead | None = None,
        on_chunk: OnChunk | None = None,
    ) -> HttpReply:
        """Raises HttpFailure, also when the home is found dead meanwhile."""
        origin = origin_at(self._rows.address_of(home))
        headers = passed_on(every_header)
        signature = self._signer.sign(method, url, headers, body, home=home, proof=authorized.forwarded)
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        request = b"%b %b HTTP/1.1\r\nhost: %b\r\ncontent-length: %d\r\n%b%b: %b\r\n\r\n%b" % (
            (method, url, home.encode("ascii"), len(body), lines, HOP, signature, body)
        )
        work = asyncio.current_task()
        assert work is not None
        hop = _Hop(home, work)
        self._open.add(hop)
        self._watch()
        try:
            target = PreparedTarget(origin, request)
            return await self._http.exchange(
                target, method, deadline_s=None, on_head=on_head, on_chunk=on_chunk, on_sending=hop.sending
            )
        except asyncio.CancelledError:
            if not hop.home_died or work.uncancel() > 0:
                raise
            stage, executed = (Stage.AWAIT_HEAD, Executed.MAYBE) if hop.sent else (Stage.CONNECT, Executed.NO)
            raise HttpFailure(stage, "the gateway that was asked is dead", executed) from None
        finally:
            self._open.discard(hop)

    def _watch(self) -> None:
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._give_up_on_dead())

    async def _give_up_on_dead(self) -> None:
        """A home that is paused or cut off says nothing: its lease does."""
        while self._open:
            for hop in [hop for hop in self._open if not self._rows.is_alive(hop.home)]:
                hop.give_up()
            await clock.sleep(_LOOK_S)

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._http.close()


@lru_cache(maxsize=256)
def origin_at(address: str) -> Origin:
    """`listen.internal` of another gateway, as it stands in its lease: host:port, or the path of a socket."""
    if address.startswith("/"):
        return Origin(False, address, 0)
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise HttpFailure(Stage.RESOLVE, "the gateway cannot be reached", Executed.NO)
    return Origin(False, host.strip("[]"), int(port))


def _unreachable() -> GatewayFault:
    text = (
        "The gateway that holds this session cannot be reached. The request was not sent to it; try again in a moment."
    )
    return GatewayFault("overloaded", text, retry_after_s=2)
