"""Forward requests to the gateway on the same store that holds the session, or a call between two rounds.

A request for a session that is not here is sent to the session's home unchanged, and the response is returned
unchanged, event streams chunk by chunk. A caller that disconnects here disconnects there. If the home has died, the
session is adopted and the request is answered here, provided it was certainly not sent or may safely be repeated;
otherwise the caller receives `executed: maybe`. A request is never forwarded twice: the home answers it, or returns
`NOT_HERE`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
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
from taskgate.inbound.http.hop import NOT_HERE, HopSigner
from taskgate.inbound.http.hop_client import HopClient
from taskgate.inbound.http.post_request import Post
from taskgate.inbound.http.session_homes import RETRY_S, WAIT_S, SessionHomes
from taskgate.inbound.http.stream_relay import PostRelay, StreamRelay
from taskgate.mcp.failures import HttpFailure
from taskgate.mcp.http.reader import HttpReply
from taskgate.telemetry.logs import log

_REPLY_HEADERS: Final = frozenset({b"retry-after", b"mcp-session-id", b"www-authenticate", b"allow"})
_REPEATABLE: Final = frozenset(
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
"""Idempotent methods, which may be answered again although they may have been answered before."""


class Forwarder:
    def __init__(
        self,
        gateway: TransportServices,
        shared: SharedSessions,
        signer: HopSigner,
        attach: Callable[[Session], None],
        workers: WorkerSockets | None,
    ) -> None:
        """`attach` adds the streams to an adopted session; `workers` are the other workers of the same parent process."""
        self.homes = SessionHomes(gateway, shared, attach)
        self._workers = workers
        self._gateway = gateway
        self._shared = shared
        self._rows = shared.rows
        self._hops = HopClient(shared, signer, gateway.limits.result_bytes)
        self._streams: set[asyncio.Task[Any]] = set()

    # Messages

    async def forward(self, post: Post, caller: Caller, message: Message | None, session_id: str) -> Session | None:
        """Forward a request of a session to its home. Return the session if it is held here and must be answered here.

        After None, `post.answered` is set unless there is no such session. Raises GatewayFault or UpstreamError.
        """
        until = clock.monotonic() + WAIT_S
        while True:
            found = self.homes.cached_home(session_id, caller) or await self.homes.locate(session_id, caller)
            if not isinstance(found, str):
                return found
            if self._workers is not None and post.hand_over(partial(self._workers.give, found)):
                return None
            if await self._post(post, found, message):
                return None
            self.homes.forget(session_id)
            if clock.monotonic() > until:
                raise _unreachable()
            await clock.sleep(RETRY_S)

    async def forward_stateless(self, post: Post, caller: Caller, message: Message) -> bool:
        """Forward a stateless call whose earlier round is held by another gateway. Return whether it was answered.

        Raises GatewayFault or UpstreamError.
        """
        state = (message.params or {}).get("requestState")
        home, waits_there = self._shared.home_of(state) if state is not None else ("", False)
        if home in (self._rows.ownership.owner, ""):
            return message.method == "tools/call" and await self._forward_to_client_home(post, caller, message)
        until = clock.monotonic() + WAIT_S
        while self._rows.is_alive(home) and clock.monotonic() < until:
            if await self._post(post, home, message):
                return True
            await clock.sleep(RETRY_S)
        if not waits_there:
            return False
        raise UpstreamError(
            "outcome_unknown",
            "The gateway that held this call between two rounds has ended. The call may or may not have taken effect.",
            executed=Executed.MAYBE,
        )

    async def _forward_to_client_home(self, post: Post, caller: Caller, message: Message) -> bool:
        """Forward a call of a stateless client whose state (timers, logs) is kept by one gateway.

        Once a client has such a home, its other calls go there too, because messages of servers beside them belong to it.
        """
        params = message.params or {}
        tool = params.get("name")
        keeps = (
            isinstance(tool, str) and tool in LOCAL_STATE_TOOLS and self._gateway.keeps_for_clients(caller.scope, tool)
        )
        if not keeps and not self._shared.conversations.any_elsewhere:
            return False
        stream = stateless_stream(caller, params)
        if not stream or not (keeps or self._shared.conversations.is_elsewhere(stream)):
            return False
        until = clock.monotonic() + WAIT_S
        while clock.monotonic() < until:
            home = await self._shared.conversations.home(stream, caller, certain=self._shared.certain)
            if home == self._rows.ownership.owner:
                return False
            if await self._post(post, home, message):
                return True
            await clock.sleep(RETRY_S)
        raise _unreachable()

    async def _post(self, post: Post, home: str, message: Message | None) -> bool:
        """Return whether the request was answered. If not, it was certainly not executed, or may be repeated."""
        assert post.authorized is not None
        relay = PostRelay(post)
        post.cancel_when_disconnected()
        url = post.head.url
        try:
            reply = await self._hops.exchange(
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
            return self._answer_failure(relay, failure, message)
        except asyncio.CancelledError:
            if post.disconnected:
                raise
            ended = post.access_ended
            why = CallerError(ended.reason.value, ended.text, executed=Executed.MAYBE) if ended is not None else None
            self._send_error(relay, message, why or stopped_before_reply(message))
            return True
        if reply.status == NOT_HERE:
            return False
        if relay.begun:
            relay.end(None)
        else:
            headers = [header for header in reply.header_list if header[0] in _REPLY_HEADERS]
            await post.respond_forwarded(reply.status, reply.body, headers)
        return True

    def _answer_failure(self, relay: PostRelay, failure: HttpFailure, message: Message | None) -> bool:
        """Answer a request whose forwarding failed. Return False if it may be sent again instead."""
        if failure.executed is Executed.NO:
            return False
        if not relay.begun and (message is None or message.kind is not Kind.REQUEST or message.method in _REPEATABLE):
            return False
        log.warning("forwarded request failed", why=failure.message)
        self._send_error(
            relay,
            message,
            UpstreamError(
                "outcome_unknown",
                "The gateway that answered this call has ended. The call may or may not have taken effect.",
                executed=Executed.MAYBE,
            ),
        )
        return True

    def _send_error(self, relay: PostRelay, message: Message | None, problem: TaskgateError) -> None:
        post = relay.post
        generation = Generation.STATEFUL if b"mcp-session-id" in post.headers else Generation.STATELESS
        reply = self._gateway.requests.failure(
            problem, message.id if message is not None else None, generation, message
        )
        if relay.begun:
            relay.end(reply.body)
        else:
            post.respond(200 if generation is Generation.STATEFUL else reply.status, reply.body)

    # Streams, and the end of sessions

    async def delete_session(self, url: bytes, headers: Headers, authorized: Authorized, home: str) -> HttpReply:
        """Forward the DELETE of a session. Raises GatewayFault."""
        try:
            return await self._hops.exchange(home, b"DELETE", url, headers, b"", authorized=authorized)
        except HttpFailure:
            raise _unreachable() from None

    def hand_over(self, connection: CallerConnection, url: bytes, headers: Headers, home: str) -> bool:
        """Give the connection to the worker that holds the session. Return False if that is not possible."""
        workers, request = self._workers, request_bytes(b"GET", url, headers, b"")
        if workers is None or request is None:
            return False
        return connection.move(lambda descriptor: workers.give(home, descriptor, request))

    async def relay_stream(self, send: Send, url: bytes, headers: Headers, authorized: Authorized, home: str) -> bool:
        """Relay a session's stream until either side ends it. Return False if the home does not have the session."""
        queue = StreamRelay()
        work = asyncio.get_running_loop().create_task(
            self._hops.exchange(
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
        """End relayed streams on shutdown, so that their callers reconnect to another gateway."""
        for work in self._streams:
            work.cancel()

    async def close(self) -> None:
        await self._hops.close()


def _unreachable() -> GatewayFault:
    text = "The gateway that holds this session is unreachable. The request was not sent to it; retry in two seconds."
    return GatewayFault("overloaded", text, retry_after_s=2)
