"""End a session: close its streams and subscriptions at once, and its server connections when no task uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping

from taskgate.core.errors import TaskgateError
from taskgate.gateway.events import ConversationIdle, EventHub, SessionEnded
from taskgate.gateway.methods.subscriptions import Subscriptions
from taskgate.gateway.plan import Live
from taskgate.gateway.requests.session import Session
from taskgate.gateway.requests.session_table import SessionTable
from taskgate.gateway.tasks.conversation import RESUMED, Conversations
from taskgate.ports.store import SharedStore
from taskgate.ports.upstream import Upstream
from taskgate.store.operations.shared_sessions import EndSession, ReleaseSession
from taskgate.telemetry.logs import log


class SessionEnds:
    def __init__(
        self,
        sessions: SessionTable,
        subscriptions: Subscriptions,
        conversations: Conversations,
        upstreams: Live[Mapping[str, Upstream]],
        *,
        events: EventHub,
        rows: SharedStore | None,
    ) -> None:
        """`rows`: where other gateways find sessions; None if no other gateway could continue them."""
        self._sessions = sessions
        self._subscriptions = subscriptions
        self._conversations = conversations
        self._upstreams = upstreams
        self._events = events
        self._rows = rows
        self._awaiting_tasks: set[str] = set()
        self._releasing: set[asyncio.Task[None]] = set()
        self._closing = False
        events.subscribe(ConversationIdle, self._idle)

    async def end(self, session: Session) -> None:
        await self._end(session, EndSession(session.id))

    async def hand_over(self, session: Session) -> None:
        """End the session here and let another gateway continue it."""
        await self._end(session, ReleaseSession(session.id))

    async def _end(self, session: Session, write: EndSession | ReleaseSession) -> None:
        if not self._sessions.remove(session):
            return
        self._events.publish(SessionEnded(session))
        if self._rows is not None:
            await write_or_log(self._rows.do(write))
        await self._subscriptions.release(self._upstreams.value, session)
        if self._conversations.in_use(session.id):
            self._awaiting_tasks.add(session.id)
        else:
            await self._release_links(session.id)

    async def reap(self, now: float) -> None:
        """End idle sessions."""
        for session in self._sessions.idle(now):
            await self.end(session)

    async def end_scope(self, scope: str) -> None:
        """A scope was removed: end its sessions and open subscriptions."""
        self._subscriptions.end_scope(scope)
        for session in [session for session in self._sessions if session.caller.scope == scope]:
            await self.end(session)

    def end_streams(self) -> None:
        """At shutdown: end the long-lived streams of all sessions."""
        for session in self._sessions:
            self._events.publish(SessionEnded(session))

    async def close(self) -> None:
        self._closing = True
        releasing = list(self._releasing)
        for job in releasing:
            job.cancel()
        await asyncio.gather(*releasing, return_exceptions=True)

    def _idle(self, event: ConversationIdle) -> None:
        """Release the links of an ended session when its last task has ended."""
        session_id = event.session_id
        if self._closing or not (session_id in self._awaiting_tasks or session_id.startswith(RESUMED)):
            return
        self._awaiting_tasks.discard(session_id)
        job = asyncio.get_running_loop().create_task(self._release(session_id))
        self._releasing.add(job)
        job.add_done_callback(self._releasing.discard)

    async def _release(self, session_id: str) -> None:
        try:
            await self._release_links(session_id)
        except TaskgateError as problem:
            log.info("links of an ended session could not be released", why=problem.message)

    async def _release_links(self, session_id: str) -> None:
        for upstream in list(self._upstreams.value.values()):
            await upstream.release(session_id)


async def write_or_log(write: Awaitable[None]) -> None:
    """Write, and log a failure: the row expires by itself."""
    try:
        await write
    except TaskgateError as problem:
        log.info("the end of a session could not be stored", why=problem.message)
