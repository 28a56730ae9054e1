"""Sessions of stateful callers when several gateways share a store: each session is a row that every gateway can find.

The gateway that opened a session is its home and answers its requests. When a home has died, another gateway becomes the home:
the session continues under its id with what its caller declared, narrowed and subscribed to. Connections to servers are opened
again, and requests in flight are lost with the former home. A gateway that was paused for longer than its lease reads from the
store which sessions are still its own before it answers in any of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import GatewayFault, TaskgateError
from taskgate.core.generations.stateful import InitializeParams
from taskgate.core.identity.caller import Caller
from taskgate.core.identity.identity import tenant_of
from taskgate.gateway.methods.following import Following
from taskgate.gateway.methods.session_ends import SessionEnds, write_or_log
from taskgate.gateway.methods.session_rows import SessionBody, narrowing_in, session_body
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.request_state import RequestStateSigner
from taskgate.gateway.requests.session import Session
from taskgate.gateway.requests.session_table import SessionTable, too_many_sessions
from taskgate.gateway.tasks.conversation_homes import ConversationHomes
from taskgate.ports.store import SharedStore
from taskgate.ports.topics import SESSIONS, Wakeups
from taskgate.store.operations.shared_sessions import (
    ChangeSession,
    ConfirmSessions,
    EndSession,
    KeptSession,
    OpenSession,
    OwnSessions,
    ReleaseSessions,
    SessionLimits,
    SessionsElsewhere,
    TooManySessions,
)
from taskgate.telemetry.logs import log

CHECK_INTERVAL_S: Final = 10.0
"""How often all sessions of other gateways are read, in case an announcement was lost."""
KEEP_S: Final = 3600.0
"""How long a session without a home can be adopted."""
_PAUSE_S: Final = 0.5
_IDLE_CHECK_S: Final = 0.05


class SharedSessions:
    def __init__(
        self,
        rows: SharedStore,
        wakeups: Wakeups,
        sessions: SessionTable,
        following: Following,
        ends: SessionEnds,
        *,
        plan: Live[Plan],
        elsewhere: Live[frozenset[str]],
        state_signer: RequestStateSigner,
        conversations: ConversationHomes,
    ) -> None:
        """`elsewhere`: the ids of the sessions of other gateways."""
        self.conversations = conversations
        self._state_signer = state_signer
        self.rows = rows
        self._wakeups = wakeups
        self._sessions = sessions
        self._plan = plan
        self._following = following
        self._ends = ends
        self._elsewhere = elsewhere
        self._written: dict[str, bytes] = {}
        self._missing: frozenset[str] = frozenset()
        """Rows that name this gateway as the home of a session that was missing here at the last check."""
        self._verified_since = rows.unbroken_since
        self._verifying = asyncio.Lock()
        self._store_unavailable = False
        """The store is unavailable, and `store.unsafe_degraded_passthrough` lets sessions continue without it."""
        self._unwritten: set[str] = set()
        """Sessions that were opened meanwhile: no other gateway can find them yet."""
        self._jobs: set[asyncio.Task[None]] = set()

    @property
    def certain(self) -> bool:
        """Whether the sessions here certainly still belong to this gateway: its lease has not ended since that was last
        verified.
        """
        return self.rows.is_fresh and self.rows.unbroken_since == self._verified_since

    async def verify(self) -> None:
        """Drop the sessions that other gateways have adopted. Raises GatewayFault if the store is unavailable, unless sessions
        may continue without it.
        """
        if self._continues_without_store():
            return
        async with self._verifying:
            if self.certain:
                return
            since = self.rows.unbroken_since
            try:
                own = await self.rows.ask(OwnSessions())
            except GatewayFault as fault:
                if not self._may_continue_without_store(fault):
                    raise
                return
            self.conversations.retain(own)
            for session in [session for session in self._sessions if session.id not in own]:
                if session.id in self._unwritten:
                    await self._write_late(session)
                    continue
                log.warning(
                    "another gateway adopted the session while the lease of this gateway had expired",
                    session=session.id[:8],
                )
                self._written.pop(session.id, None)
                await self._ends.end(session)
            self._verified_since = since
            self._store_unavailable = False
            self._unwritten.clear()

    def _continues_without_store(self) -> bool:
        """Whether to skip the store: a request to an unavailable store would delay every call until its timeout."""
        return self._store_unavailable and not self.rows.is_fresh and self._plan.value.features.degraded_passthrough

    def _may_continue_without_store(self, fault: GatewayFault) -> bool:
        """Whether the store is unavailable and sessions may continue without it, until it is back."""
        if fault.error_type != "store_unavailable" or not self._plan.value.features.degraded_passthrough:
            return False
        if not self._store_unavailable:
            log.warning("the store is unavailable: sessions continue at this gateway only", why=fault.message)
        self._store_unavailable = True
        return True

    async def _write_late(self, session: Session) -> None:
        """The store is back: store a session that was opened without it."""
        try:
            await self._open_row(session)
        except GatewayFault as fault:
            if fault.error_type == "store_unavailable":
                raise
            log.warning("a session that was opened without the store is ended", why=fault.message)
            await self._ends.end(session)

    def home_of(self, request_state: object) -> tuple[str, bool]:
        """The gateway where the call of a returning stateless caller continues, or an empty name for any gateway; and whether
        the call is lost with that gateway.
        """
        return self._state_signer.home_in(request_state)

    async def opened(self, session: Session) -> None:
        """Store a new session. Other gateways can find it when this returns. Raises GatewayFault, and then the session is
        closed.
        """
        try:
            if not self._continues_without_store():
                await self._open_row(session)
                return
        except BaseException as problem:
            if not isinstance(problem, GatewayFault) or not self._may_continue_without_store(problem):
                self._sessions.remove(session)
                raise
        self._unwritten.add(session.id)

    async def _open_row(self, session: Session) -> None:
        """Raises GatewayFault."""
        body, caller, limits = session_body(session), session.caller, self._plan.value.limits
        kept = KeptSession(id=session.id, principal=caller.principal, scope=caller.scope, home="", moves=0, body=body)
        session_limits = SessionLimits(caller.limit_key, limits.sessions_per_caller, limits.sessions_per_tenant)
        full = await self.rows.do(OpenSession(kept, session_limits))
        unused = self._unused(caller, full) if full is not None else None
        if unused is not None:
            await self._ends.end(unused)
            full = await self.rows.do(OpenSession(kept, session_limits))
        if full is not None:
            subject = "You have" if full is TooManySessions.OF_CALLER else "Your tenant has"
            raise too_many_sessions(f"{subject} too many sessions")
        self._written[session.id] = body

    def _unused(self, caller: Caller, full: TooManySessions) -> Session | None:
        """A session of this gateway that can be replaced. Sessions of other gateways are not considered."""
        if full is TooManySessions.OF_CALLER:
            return self._sessions.unused(lambda one: one.caller.limit_key == caller.limit_key)
        tenant = tenant_of(caller.principal)
        return self._sessions.unused(lambda one: tenant_of(one.caller.principal) == tenant)

    async def changed(self, session: Session) -> None:
        """Store a changed session, so that the change survives its home."""
        body = session_body(session)
        if self._written.get(session.id) == body:
            return
        if await self.rows.do(ChangeSession(session.id, body)):
            self._written[session.id] = body

    def restored(self, kept: KeptSession) -> Session:
        """Open a session that this gateway has adopted. Its subscriptions are renewed in the background."""
        body = msgspec.json.decode(kept.body, type=SessionBody)
        caller = Caller(
            principal=kept.principal,
            roles=frozenset(body.roles),
            scope=kept.scope,
            place=body.place,
            address=body.address,
            facts=body.facts,
        )
        opening = InitializeParams(body.version, body.capabilities, body.client_info)
        session = Session(kept.id, caller, opening, narrowing_in(body), moves=kept.moves)
        if body.log_level is not None:
            session.set_log_level(body.log_level)
        if body.used_tasks:
            session.mark_task_use()
        for uri, server in body.subscriptions.items():
            self._following.subscriptions.follow(session, uri, server)
        self._sessions.restore(session, clock.monotonic())
        self._written[session.id] = kept.body
        if body.subscriptions:
            self._spawn(self._resubscribe(session, body.subscriptions))
        log.info("session adopted", session=session.id[:8], principal=caller.principal, moves=kept.moves)
        return session

    async def _resubscribe(self, session: Session, subscriptions: Mapping[str, str]) -> None:
        for uri in list(subscriptions):
            call = {"jsonrpc": "2.0", "id": "follow-again", "method": "resources/subscribe", "params": {"uri": uri}}
            message = wire.checked_message(wire.encode(call))
            try:
                await self._following.subscribe(Request.opened(message, session.caller, _NullOutlet(), session))
            except TaskgateError as problem:
                log.warning(
                    "subscription of an adopted session could not be renewed", uri=uri[:200], why=problem.message
                )

    def start(self) -> None:
        self._spawn(self._listen())

    async def _listen(self) -> None:
        while True:
            try:
                self._elsewhere.replace(await self.rows.ask(SessionsElsewhere()))
                self.conversations.refresh()
                if self._store_unavailable:
                    await self.verify()
                await self._wakeups.wait(SESSIONS, CHECK_INTERVAL_S)
            except Exception as fault:  # one round of a background loop: the next round retries
                log.warning("sessions of other gateways cannot be read", why=str(fault))
            await clock.sleep(_PAUSE_S)

    async def maintain(self, now_ms: int) -> None:
        """Periodically: renew this gateway's sessions, store unnoticed changes, and delete sessions without a home."""
        if not self.certain:
            await self.verify()
        here = {session.id for session in self._sessions} | self.conversations.rows_here()
        for session in self._sessions:
            await self.changed(session)
        missing = await self.rows.ask(OwnSessions()) - here
        # A session that is just being opened, adopted or handed over may be missing once, but not twice.
        for gone in missing & self._missing:
            if self._sessions.get(gone) is None:
                await self.rows.do(EndSession(gone))
        self._missing = missing
        self.conversations.retain(here)
        self._written = {key: body for key, body in self._written.items() if self._sessions.get(key)}
        self._unwritten = {key for key in self._unwritten if self._sessions.get(key)}
        await self.rows.do(ConfirmSessions(now_ms - int(KEEP_S * 1000)))

    async def hand_over(self) -> None:
        """At shutdown: release every session as soon as it has no request in flight."""
        while len(self._sessions):
            for session in self._sessions:
                if not session.in_flight and not session.open_requests:
                    await self._ends.hand_over(session)
            await clock.sleep(_IDLE_CHECK_S)

    async def release_all(self) -> None:
        """Release what could not be handed over, when no request can arrive here any more."""
        await write_or_log(self.rows.do(ReleaseSessions()))

    def _spawn(self, work: Any) -> None:
        job = asyncio.get_running_loop().create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def close(self) -> None:
        jobs = list(self._jobs)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


class _NullOutlet:
    """Discards notifications and the reply."""

    can_send = still_there = is_read = True

    def send(self, message: bytes) -> None:
        return None

    def hold_open(self) -> None:
        return None

    async def finish(self, status: int, body: bytes) -> None:
        return None
