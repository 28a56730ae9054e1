"""The gateway as its doors see it: one place to hand messages to, and an answer for each.

A table per generation says which use case answers which method; a method that is not in the table does not exist in that
generation, whatever an upstream may know (a version gate is the gateway's job).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.activity.waterfall import Span
from taskgate.core.caller import Caller
from taskgate.core.catalog.entry import EntryKind
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.generations import Generation
from taskgate.core.generations.stateful_2025 import read_opening
from taskgate.core.scoping.request import SessionRequest
from taskgate.core.scoping.subset import NotAllowed, Reason, Subset
from taskgate.core.wire import Message
from taskgate.gateway.activity.activity import Activity
from taskgate.gateway.activity.asker import Asker, session_key
from taskgate.gateway.activity.task_questions import TaskInbox
from taskgate.gateway.admission import Admission
from taskgate.gateway.ask_models import Models, shown_to_operator
from taskgate.gateway.budgets import CHARGED, Budgets
from taskgate.gateway.caller_news import notified
from taskgate.gateway.catalogs import Catalogs, Offer
from taskgate.gateway.completions import Completions
from taskgate.gateway.context import Context
from taskgate.gateway.elicitation_pages import ElicitationPages
from taskgate.gateway.governance.annotations import Annotations
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.ask_caller import AskCaller
from taskgate.gateway.governance.by_url import ByUrl
from taskgate.gateway.governance.call_log import CallLog
from taskgate.gateway.governance.governor import Governor
from taskgate.gateway.governance.held_readings import HeldReadings
from taskgate.gateway.governance.loose_ends import warn_of_loose_ends
from taskgate.gateway.governance.pins import Pins
from taskgate.gateway.guests import Guests
from taskgate.gateway.introduce import initialize_result
from taskgate.gateway.method_tables import MethodTables
from taskgate.gateway.own_tools.table import FACADE_MODES, callable_families
from taskgate.gateway.plan import Limits, Plan
from taskgate.gateway.relay import Relay
from taskgate.gateway.replies import Reply, broken, going_down, refused, relayed
from taskgate.gateway.request import Request
from taskgate.gateway.scope_record import ScopeRecord, facts_of, scope_hint
from taskgate.gateway.seal import Seal
from taskgate.gateway.session_ends import SessionEnds
from taskgate.gateway.sessions import Session, SessionTable
from taskgate.gateway.subscriptions import Subscriptions
from taskgate.gateway.suspended import SuspendedCalls
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tool_facts import ToolFacts
from taskgate.gateway.traced import answer_traced
from taskgate.gateway.upstream_news import UpstreamNews
from taskgate.gateway.url_elicitations import UrlElicitations
from taskgate.gateway.validate import Validation
from taskgate.gateway.vendor_methods import VendorMethods
from taskgate.gateway.views import Views
from taskgate.ports.store import Store
from taskgate.ports.upstream import RelayedError, Upstream
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing

UseCase = Callable[[Request], Awaitable[bytes]]


class Gateway:
    def __init__(
        self, plan: Plan, upstreams: Mapping[str, Upstream], store: Store, metrics: Metrics, seal_key: bytes
    ) -> None:
        self.stopping = False
        self.tracing: Tracing | None = None
        self.metrics = metrics
        self._plan = plan
        self._upstreams = upstreams
        self._own_plan, self._own_upstreams = plan, upstreams
        self.tasks = TaskEngine(store, lambda: self._plan, lambda: self._upstreams)
        self._suspended = SuspendedCalls()
        self.subscriptions = Subscriptions()
        self.session_ends = SessionEnds(lambda: self.context, self.subscriptions)
        catalogs = Catalogs(
            upstreams, plan.limits, lambda server, kinds: self.news.lists_changed(server, kinds), metrics
        )
        sessions = SessionTable(plan.limits.sessions, plan.limits.session_idle_s, self.session_ends.ended)
        seal = Seal(seal_key)
        self.tasks.sign_with(seal)
        self.activity = Activity(store, plan.limits)
        self._asker = Asker(self.activity.inbox, lambda: self._plan)
        self._suspended.otherwise = self._asker.otherwise
        relay = Relay(seal, self._suspended, self._asker.ask_caller, self._asker.otherwise)
        self.models = Models(lambda: self._plan.features, shown_to_operator(self.activity.inbox), store.record)
        self.urls = UrlElicitations(lambda: self._plan.features, store.record)
        self._asker.models, self._asker.urls, self._suspended.urls = self.models, self.urls, self.urls
        self._asker.attended = lambda caller: self.activity.find(caller) is not None
        self._give_time_to_questions(plan)
        self.news = UpstreamNews(lambda: self.context, self.subscriptions, self.activity, self._asker, self.urls)
        relay.urls, relay.elicitation_over = self.urls, self.news.elicitation_over
        self.activity.inbox.page_url = self.elicitation_url
        self.tasks.judge_urls(self.urls, self._asker.patience, self.news.elicitation_over)
        self.approvals = Approvals(self.tasks, lambda: self._plan, metrics)
        self.scope_record = ScopeRecord(store, metrics)
        views = Views(catalogs, self._note, self.scope_record.composed)
        governor = Governor(self.tasks, catalogs, lambda: self._plan, metrics, self.approvals, views)
        self._ask_caller = AskCaller(self.approvals, self.tasks, lambda: self._plan)
        self.pins = Pins(store, catalogs, lambda: self._plan, self.approvals)
        self.annotations = Annotations(lambda: self._plan, catalogs, metrics)
        catalogs.inspect = self._inspect
        by_url = ByUrl(seal, self.approvals, self.tasks, lambda: self._plan)
        readings = HeldReadings(governor, self.tasks, lambda: self._plan)
        self.budgets = Budgets(plan)
        self.admission = Admission(plan.limits)
        self.admission.refused = lambda why: metrics.denied.add(f"overloaded_{why}")
        metrics.gauges += [*self.budgets.gauges(), *self.admission.gauges()]
        self.guests = Guests()
        self.context = Context(
            plan,
            upstreams,
            catalogs,
            views,
            relay,
            sessions,
            self.tasks,
            metrics,
            self.budgets,
            self.activity,
            governor,
            by_url,
            readings,
            CallLog(store),
            Validation(lambda: self._plan.features.validate, metrics.schema_violations.add),
            Completions(lambda: self._plan.features.learn),
            self.guests,
            self._guests_changed,
        )
        facts = ToolFacts(catalogs, self.context.validation)
        self.tasks.desk.check = facts.check_output
        self.tasks.runs.supports_upstream_tasks(facts.can_be_upstream_task)
        self.activity.unwatch = self._unwatch
        self.waterfall = relay.waterfall
        self.tasks.runs.draw_in(relay.waterfall)
        self.tasks.board.listeners.append(self.activity.task_changed)
        self.task_inbox = TaskInbox(self.activity, self._asker, self.tasks)
        self.session_ends.tell(self.activity.forget_session)
        self.tasks.desk.cut = self.budgets.cut
        self.tasks.runs.queue_in(self.budgets.lines.get)
        self.tasks.runs.on_idle = self.session_ends.last_task_ended
        self.tasks.followers.sessions = lambda: self.context.sessions
        self.tasks.followers.session = lambda session_id: self.context.sessions.get(session_id)
        self.tasks.followers.listeners = self.subscriptions.following
        self.pages = ElicitationPages()
        self.vendor = VendorMethods(lambda: self.context, self.urls, self.pages, self.elicitation_url)
        self.news.listed = self.vendor.for_server
        tables = MethodTables(lambda: self.context, self.subscriptions, self.tasks)
        self._stateful, self._stateless = tables.stateful(), tables.stateless()

    def trace(self, tracing: Tracing | None) -> None:
        """Watch every request and every errand from now on."""
        self.tracing = self.context.relay.tracing = tracing
        self.tasks.runs.trace(tracing)

    # What the doors ask for

    @property
    def limits(self) -> Limits:
        return self.context.plan.limits

    @property
    def default_scope(self) -> str:
        return self.context.plan.default_scope

    def has_scope(self, scope: str) -> bool:
        return scope in self.context.plan.scopes

    def find_session(self, session_id: str, caller: Caller) -> Session | None:
        return self.context.sessions.find(session_id, caller, clock.monotonic())

    def touch(self, session: Session) -> None:
        session.last_used = clock.monotonic()

    async def end_session(self, session: Session) -> None:
        await self.context.sessions.end(session)

    async def initialize(
        self, message: Message, caller: Caller, narrowing: SessionRequest, old_stdio: bool = False
    ) -> tuple[Session, bytes]:
        """Open a session; asking for servers beyond the scope is refused here, with the reason."""
        if self.stopping:
            raise going_down()
        opening = read_opening(message.params, old_stdio)
        wish = narrowing.narrowed(SessionRequest.from_meta(_meta(message)))
        subset = self.admit(caller, wish)
        result = await initialize_result(self.context, caller.scope, subset.servers, opening.version)
        session = self.context.sessions.open(caller, opening, wish, clock.monotonic())
        scope = self.context.plan.scopes[caller.scope]
        if callable_families(scope):
            session.face = msgspec.structs.replace(session.face, inbox=True)
        if scope.mode in FACADE_MODES:
            self.activity.open(session_key(session), caller.scope)
        log.info(
            "session opened", principal=caller.principal, client=opening.client_info.get("name"), **facts_of(subset)
        )
        return session, wire.success(message.id or b"null", result)

    def admit(self, caller: Caller, narrowing: SessionRequest) -> Subset:
        """What this caller gets who asks for that. Raises NotAllowed if it is more than its scope may have."""
        try:
            return self.context.views.subset(self.context.plan, caller.scope, narrowing, asking=True)
        except NotAllowed:
            # Names that callers make up must not become labels.
            self.metrics.denied_reason.add("", Reason.NOT_ALLOWED.value)
            raise

    def answer(self, request: Request) -> Coroutine[Any, Any, Reply | None]:
        """Answer one request, whatever happens; None if it was answered early and the call went on as a task."""
        if self.tracing is None:
            return self._answer(request)
        return answer_traced(self.tracing, request, self._answer)

    async def _answer(self, request: Request) -> Reply | None:
        message, session = request.message, request.session
        assert message.id is not None
        methods = self._stateful if session is not None else self._stateless
        use_case = methods.get(message.method)
        span = request.span = self._begin_span(request)
        state = "error"
        try:
            if use_case is None and session is not None and self.context.plan.features.vendor_methods:
                use_case = self.vendor.methods.get(message.method)
            if use_case is None:
                raise CallerError("method_not_found", f"There is no method {message.method[:80]!r} in this revision.")
            if self.stopping:
                raise going_down()
            if message.method in CHARGED:
                if self.budgets.rate is not None:
                    self.budgets.charge(request.caller.principal)
                self.admission.enter(request)
            if session is None:
                # A stateless request says itself what can be asked of its caller, and an upstream must be able to rely
                # on that (-32021); only a scope that is all about the facade adds the inbox.
                scope = self.context.plan.scopes.get(request.caller.scope)
                request.inbox = scope is not None and scope.mode in FACADE_MODES
                result = await use_case(request)
            else:
                if request.carrier is None:
                    request.carrier = asyncio.current_task()
                assert request.carrier is not None
                session.begin(message.id, request.carrier)
                try:
                    result = await use_case(request)
                finally:
                    if not request.answered:
                        session.end(message.id)
            state = "ok"
            return Reply(wire.success(message.id, result)) if not request.answered else None
        except RelayedError as error:
            return relayed(request, error)
        except TaskgateError as problem:
            return self.failure(problem, message.id, request.generation)
        except Exception as fault:  # one request: it breaks for this caller only, who gets a reference to the log
            return broken(fault, message, request.generation)
        except asyncio.CancelledError:
            state = "cancelled"
            raise
        finally:
            if not request.answered:
                request.count_out()
                request.end_progress()
                span.over(state, clock.wall())

    def _begin_span(self, request: Request) -> Span:
        params = request.params
        name = params.get("name") or params.get("uri") or params.get("taskId")
        return self.waterfall.begin(
            "request",
            request.message.method,
            name[:120] if type(name) is str else "",
            "",
            request.caller.principal,
            clock.wall(),
        )

    def failure(self, problem: TaskgateError, message_id: bytes | None, generation: Generation) -> Reply:
        return refused(self.context.plan, problem, message_id, generation)

    def scope_hint(self, asked: str) -> str:
        """For operators: what is wrong with the name of a scope."""
        return scope_hint(self.context.plan, asked)

    async def notified(self, session: Session, message: Message) -> None:
        """A notification from a stateful caller."""
        await notified(self.context, session, message)

    def elicitation_url(self, page_id: str) -> str:
        return f"{self.approvals.public_base(self._plan)}/elicitations/{page_id}"

    async def _unwatch(self, server: str, uri: str) -> None:
        upstream = self.context.upstreams.get(server)
        if upstream is not None and not self.stopping:
            await upstream.unwatch(uri)

    def _note(self, note: str) -> None:
        log.warning("catalog", note=note)

    # Change and end

    async def start(self) -> None:
        """Before callers come: know what the store knows of standing grants and open questions."""
        await self.pins.load()
        await self.approvals.start()

    def _inspect(self, server: str, offer: Offer) -> None:
        """Every list, before anybody sees it."""
        self.pins.inspect(server, offer)
        self.annotations.look(server, offer)
        self.context.validation.look(offer.entries.get(EntryKind.TOOL, ()))

    def write_down_calls(self) -> None:
        """Plain calls of the last second go into the audit log."""
        self.context.call_log.flush(self.context.plan.gates.revision)

    async def reap(self) -> None:
        await self.context.sessions.reap(clock.monotonic())
        self.activity.reap(clock.monotonic())

    def adopt(self, plan: Plan, upstreams: Mapping[str, Upstream], changed: frozenset[str]) -> None:
        """A reload: the new plan holds from the next request on; requests under way end under the old one."""
        before = self.context.plan
        self._own_plan, self._own_upstreams = plan, upstreams
        plan, upstreams = self.guests.merged(plan, upstreams)
        plan = replace(plan, revision=max(plan.revision, before.revision + 1))
        self.context.plan = self._plan = plan
        self.context.upstreams = self._upstreams = upstreams
        self.context.catalogs.adopt(upstreams, changed, plan.limits)
        self.context.sessions.adopt(plan.limits.sessions, plan.limits.session_idle_s)
        self.activity.adopt(plan.limits)
        self.budgets.adopt(plan)
        self.admission.adopt(plan.limits)
        self.scope_record.start_over()
        self._give_time_to_questions(plan)
        if before.gates is not plan.gates:
            self.pins.adopt()
            self.annotations.adopt()
            warn_of_loose_ends(plan.gates, self.tasks.store)
        if before.registry is not plan.registry or before.scopes != plan.scopes or before.gates is not plan.gates:
            self.subscriptions.lists_changed(self.context.sessions, tuple(EntryKind), lambda _c, _n: True)

    def _give_time_to_questions(self, plan: Plan) -> None:
        inbox = self.activity.inbox
        inbox.url_expiry_s = plan.features.url_expiry_s
        inbox.per_server = plan.limits.questions_per_server
        inbox.expiry_s = plan.limits.question_timeout_s

    def _guests_changed(self, name: str) -> None:
        """A server was added or removed by a caller: everything else stays as the operator has it."""
        self.adopt(self._own_plan, self._own_upstreams, frozenset({name}))

    async def close(self) -> None:
        self.stopping = True
        self.subscriptions.end_all()
        self.write_down_calls()
        await self.pins.close()
        await self._ask_caller.close()
        await self.approvals.close()
        await self.tasks.close()
        await self._suspended.close()
        await self.models.close()
        await self.vendor.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)
        await self.activity.close()
        await self.guests.close()
        await self.context.catalogs.close()
        self.session_ends.end_streams()


def _meta(message: Message) -> Mapping[str, object]:
    meta = (message.params or {}).get("_meta")
    return meta if type(meta) is dict else {}
