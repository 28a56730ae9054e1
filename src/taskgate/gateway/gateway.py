"""The gateway as its transports see it: one place to hand messages to, and an answer for each.

A table per generation says which use case answers which method; a method that is not in the table does not exist in that
generation, whatever an upstream may know (a version gate is the gateway's job).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateful import read_opening
from taskgate.core.identity.caller import Caller
from taskgate.core.scoping.scope import FACADE_MODES
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.scoping.subset import NotAllowed, Reason, Subset
from taskgate.core.text.confusables import JUDGED, imitated_member
from taskgate.core.waterfall import Waterfall
from taskgate.core.wire import Message
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.changes import Configured, OtherGateways, Reload, SharedCaches
from taskgate.gateway.dynamic_servers import facts_of, scope_hint
from taskgate.gateway.events import EventHub
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.ask_caller import AskCaller
from taskgate.gateway.governance.call_log import CallLog
from taskgate.gateway.governance.pins import Pins
from taskgate.gateway.governance.record_calls import Denials
from taskgate.gateway.governance.standing_grants import KnownPeople
from taskgate.gateway.method_tables import no_such_method
from taskgate.gateway.methods.caller_notifications import notified
from taskgate.gateway.methods.handshake import initialize_result
from taskgate.gateway.methods.session_ends import SessionEnds
from taskgate.gateway.methods.shared_sessions import SharedSessions
from taskgate.gateway.methods.subscriptions import Subscriptions
from taskgate.gateway.methods.temporary_scopes import TemporaryScopes
from taskgate.gateway.methods.upstream_notifications import UpstreamNotifications
from taskgate.gateway.methods.vendor_methods import VendorMethods
from taskgate.gateway.own_tools.table import TOOLS, callable_families
from taskgate.gateway.own_tools.timers_and_logs import KEPT_BY_ONE_GATEWAY
from taskgate.gateway.plan import Limits, Live, Plan, PublicAddress
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.elicitations import ElicitationPages
from taskgate.gateway.questions.separated import SeparatedServers
from taskgate.gateway.questions.shared_inbox import SharedInbox
from taskgate.gateway.relay.traced_calls import answer_traced
from taskgate.gateway.requests.admission import Admission
from taskgate.gateway.requests.budgets import CHARGED, Budgets
from taskgate.gateway.requests.replies import CallerReply, broken, going_down, refused, relayed
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.session import Session
from taskgate.gateway.requests.session_table import SessionTable
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.task_metrics import TaskMetrics
from taskgate.ports.credentials import AccountConnector
from taskgate.ports.upstream import RelayedError, Upstream
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing

UseCase = Callable[[Request], Awaitable[bytes]]
Answer = Callable[[Request], Coroutine[Any, Any, CallerReply | None]]


@dataclass(slots=True, eq=False, kw_only=True)
class Gateway:
    """Made by `wiring`, which knows how its parts fit together."""

    plan: Live[Plan]
    upstreams: Live[Mapping[str, Upstream]]
    lookup: Lookup
    sessions: SessionTable
    tasks: TaskEngine
    activity: Activity
    metrics: Metrics
    budgets: Budgets
    call_log: CallLog
    tracing: Tracing | None
    waterfall: Waterfall
    address: PublicAddress
    accounts: AccountConnector
    events: EventHub
    subscriptions: Subscriptions
    session_ends: SessionEnds
    shared_sessions: SharedSessions | None
    """Where other gateways can go on with our sessions, and we with theirs."""
    admission: Admission
    denials: Denials
    task_metrics: TaskMetrics
    pins: Pins
    approvals: Approvals
    others: OtherGateways
    caches: SharedCaches | None
    ask_caller: AskCaller
    pages: ElicitationPages
    shared_inbox: SharedInbox | None
    """Where other gateways see and answer what is asked here."""
    vendor: VendorMethods
    notifications: UpstreamNotifications
    reload: Reload
    temporary_scopes: TemporaryScopes
    people: KnownPeople
    separated: SeparatedServers
    close_first: tuple[Callable[[], Awaitable[None]], ...]
    close_last: tuple[Callable[[], Awaitable[None]], ...]
    """What may go only after the tasks and the sessions that may still need it, in this order."""
    stateful: Mapping[str, UseCase]
    stateless: Mapping[str, UseCase]
    stopping: bool = False
    answer: Answer = field(init=False)
    """Answer one request, whatever happens; None if it was answered early and the call went on as a task."""

    def __post_init__(self) -> None:
        tracing, plainly = self.tracing, self._answer
        self.answer = partial(answer_traced, tracing, plainly) if tracing is not None else plainly

    # What the inbound transports ask for

    @property
    def catalogs(self) -> Catalogs:
        return self.lookup.catalogs

    @property
    def limits(self) -> Limits:
        return self.plan.value.limits

    @property
    def default_scope(self) -> str:
        return self.plan.value.default_scope

    def has_scope(self, scope: str) -> bool:
        return scope in self.plan.value.scopes

    def keeps_for_clients(self, scope: str, tool: str) -> bool:
        """Whether callers of this scope have this tool of ours, and what it remembers is at one gateway."""
        policy = self.plan.value.scopes.get(scope)
        return (
            policy is not None and tool in KEPT_BY_ONE_GATEWAY and TOOLS[tool].face.family in callable_families(policy)
        )

    def touch(self, session: Session) -> None:
        session.touch(clock.monotonic())

    async def end_session(self, session: Session) -> None:
        await self.session_ends.end(session)

    async def initialize(
        self, message: Message, caller: Caller, narrowing: SessionRequest, old_stdio: bool = False
    ) -> tuple[Session, bytes]:
        """Open a session; asking for servers beyond the scope is refused here, with the reason."""
        if self.stopping:
            raise going_down(message)
        opening = read_opening(message.params, old_stdio)
        wish = narrowing.narrowed(SessionRequest.from_meta(_meta(message)))
        subset = self.admit(caller, wish)
        result = await initialize_result(self.lookup, caller.scope, subset.servers, opening.version)
        unused = self.sessions.replaceable(caller)
        if unused is not None:
            await self.session_ends.end(unused)
        session = self.sessions.open(caller, opening, wish, clock.monotonic())
        if self.shared_sessions is not None:
            await self.shared_sessions.opened(session)
        self._equip(session)
        log.info(
            "session opened", principal=caller.principal, client=opening.client_info.get("name"), **facts_of(subset)
        )
        return session, wire.success(message.id or b"null", result)

    def _equip(self, session: Session) -> None:
        """What a session has by its scope."""
        scope = self.plan.value.scopes[session.caller.scope]
        if callable_families(scope):
            session.use_inbox()
        if scope.mode in FACADE_MODES:
            self.activity.open(session.conversation, session.caller.scope)

    async def adopt_session(self, session_id: str, former: str) -> Session | None:
        """Go on with the session of a gateway that has died. None if it has not, or if somebody else was quicker."""
        assert self.shared_sessions is not None
        kept = await self.shared_sessions.rows.adopt_session(session_id, former)
        if kept is None or not self.has_scope(kept.scope):
            return None
        session = self.shared_sessions.restored(kept)
        self._equip(session)
        return session

    def admit(self, caller: Caller, narrowing: SessionRequest) -> Subset:
        """What this caller gets who asks for that. Raises NotAllowed if it is more than its scope may have."""
        try:
            return self.lookup.views.subset(self.plan.value, caller.scope, narrowing, asking=True)
        except NotAllowed as problem:
            # Names that callers make up must not become labels.
            self.metrics.denied_reason.add("", Reason.NOT_ALLOWED.value)
            self.denials.session_refused(caller, problem)
            raise

    async def _answer(self, request: Request) -> CallerReply | None:
        message, session = request.message, request.session
        assert message.id is not None
        methods = self.stateful if session is not None else self.stateless
        use_case = methods.get(message.method)
        span = request.delivery.begin(message.method, request.params, request.caller.principal, self.waterfall)
        state = "error"
        try:
            if session is not None and self.plan.value.features.vendor_methods:
                use_case = self.vendor.methods.get(message.method, use_case)
            if use_case is None:
                raise no_such_method(message.method)
            self._enter(request, message.id)
            try:
                result = await use_case(request)
            finally:
                if session is not None and not request.delivery.answered:
                    session.end(message.id)
            state = "ok"
            return CallerReply(wire.success(message.id, result)) if not request.delivery.answered else None
        except RelayedError as error:
            return relayed(request, error)
        except TaskgateError as problem:
            state = problem.error_type
            self.denials.request_refused(request, problem)
            return refused(self.plan.value, problem, message.id, request.generation, message, facts=_facts(request))
        except Exception as fault:  # one request: it breaks for this caller only, who gets a reference to the log
            return broken(fault, message, request.generation)
        except asyncio.CancelledError:
            state = "cancelled"
            if (
                self.tasks.draining
                and not request.delivery.sent
                and message.method in CHARGED
                and not request.delivery.answered
            ):
                # It still waited for its turn, or for a connection, when the time to drain was over.
                return self.failure(going_down(message), message.id, request.generation, message)
            raise
        finally:
            if request.delivery.answered:
                state = "promoted"
            else:
                request.delivery.over()
                span.over(state, clock.monotonic())
            # A method that callers make up must not become a label.
            self.metrics.answered(message.method if use_case else "other", state, clock.monotonic() - span.began)

    def _enter(self, request: Request, message_id: bytes) -> None:
        """It may be answered now: there is room for it, and whoever cancels it finds it. Raises where there is none."""
        if self.stopping:
            raise going_down(request.message)
        params = request.message.params
        if params is not None and request.message.method in PASSED_ON and not params.keys() <= USUAL:
            _refuse_imitations(params)
        if request.message.method in CHARGED:
            if self.budgets.limit_callers:
                self.budgets.admit(request)
            self.admission.enter(request)
            if self.caches is not None:
                self.caches.check()
        if request.session is not None:
            request.session.begin(message_id, request.delivery.carrier or request.delivery.carried())
            return
        # A stateless request says itself what can be asked of its caller, and an upstream must be able to rely on that
        # (-32021); only a scope that is all about the facade adds the inbox.
        scope = self.plan.value.scopes.get(request.caller.scope)
        if scope is not None and scope.mode in FACADE_MODES:
            request.delivery.use_inbox()

    def failure(
        self,
        problem: TaskgateError,
        message_id: bytes | None,
        generation: Generation,
        message: Message | None = None,
    ) -> CallerReply:
        """`message` is the request, where it could be read: the error states nothing about earlier calls that it refers to."""
        return refused(self.plan.value, problem, message_id, generation, message)

    def scope_hint(self, asked: str) -> str:
        """For operators: what is wrong with the name of a scope."""
        return scope_hint(self.plan.value, asked)

    async def notified(self, session: Session, message: Message) -> None:
        """A notification from a stateful caller."""
        await notified(self.lookup, self.upstreams.value, session, message)

    # Change and end

    async def start(self) -> None:
        """Before callers come: know what the store knows of grants, open questions and lists, and begin to ask the servers."""
        await self.temporary_scopes.start()
        await self.people.load()
        await self.separated.load()
        await self.pins.load()
        await self.approvals.start()
        if self.caches is not None:
            await self.caches.load_all()
        await self.catalogs.start()
        if self.shared_sessions is not None:
            self.shared_sessions.start()
        if self.shared_inbox is not None:
            self.shared_inbox.start()

    async def take_over(self) -> None:
        """Before callers come: what gateways that are gone have left, and what a restored store no longer allows."""
        restored = self.tasks.store.is_restored
        await self.tasks.recovery.take_over()
        if not restored:
            return
        await self.people.load()
        tokens = [token.id for token in self.plan.value.governing.tokens if not self.people.is_revoked(token.sha256)]
        log.warning(
            "a token that was revoked after the backup is valid again: review them and revoke those again (`taskgate tokens "
            "revoke NAME`)",
            tokens=tokens,
        )

    def write_down_calls(self) -> None:
        """Plain calls of the last second go into the audit log."""
        self.call_log.flush(self.plan.value.gates.revision, last=self.stopping)
        self.denials.flush()

    async def reap(self) -> None:
        await self.session_ends.reap(clock.monotonic())
        self.activity.reap(clock.monotonic())
        for upstream in self.upstreams.value.values():
            await upstream.end_idle()
        if self.shared_sessions is not None:
            await self.shared_sessions.tend(self.tasks.store.now_ms())
        if self.shared_inbox is not None:
            await self.shared_inbox.tend(self.tasks.store.now_ms())

    def adopt(self, plan: Plan, upstreams: Mapping[str, Upstream], changed: frozenset[str]) -> None:
        """A reload. `changed` are the servers that are new or not what they were."""
        self.reload.adopt(Configured(plan, upstreams), changed)

    async def close(self) -> None:
        self.stopping = True
        self.subscriptions.end_all()
        self.write_down_calls()
        for close in self.close_first:
            await close()
        await self.pins.close()
        await self.ask_caller.close()
        await self.others.close()
        if self.shared_sessions is not None:
            await self.shared_sessions.close()
        if self.shared_inbox is not None:
            await self.shared_inbox.close()
        await self.approvals.close()
        await self.tasks.close()
        await self.session_ends.close()
        for close in self.close_last:
            await close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)
        await self.activity.close()
        await self.reload.dynamic_servers.close()
        await self.catalogs.close()
        self.session_ends.end_streams()


PASSED_ON: Final = CHARGED | {"resources/subscribe", "resources/unsubscribe"}


USUAL: Final = JUDGED - {"ref"}
"""Members that need no closer look. A reference has members of its own."""


def _refuse_imitations(params: Mapping[str, Any]) -> None:
    """Servers get all members of what they are asked, and could take one that nobody has judged for one that was."""
    unjudged = imitated_member(params)
    if unjudged is not None:
        raise CallerError(
            "invalid_params", f"The member {unjudged[0][:80]!r} imitates {unjudged[1]!r}. The request was not executed."
        )


def _facts(request: Request) -> dict[str, object]:
    """Who asked for what, for the log."""
    asked = request.params.get("name") or request.params.get("uri") or request.params.get("taskId")
    facts = {
        "method": request.message.method[:80],
        "principal": request.caller.principal,
        "scope": request.caller.scope,
    }
    return {**facts, "name": asked[:200]} if type(asked) is str else dict(facts)


def _meta(message: Message) -> Mapping[str, object]:
    meta = (message.params or {}).get("_meta")
    return meta if type(meta) is dict else {}
