"""Groups of parts that `wiring` makes together and hands on, and what it needs from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from taskgate.core.diagrams import Waterfall
from taskgate.gateway.calls.context import Context
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.validate import HandedOut, Validation
from taskgate.gateway.catalog.views import Views
from taskgate.gateway.changes import Reload
from taskgate.gateway.dynamic_servers import NewServer, ScopeRecord
from taskgate.gateway.events import EventHub
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.ask_caller import AskCaller
from taskgate.gateway.governance.call_log import UsageCounter
from taskgate.gateway.governance.gate import CallGate
from taskgate.gateway.governance.pins import Annotations, Pins
from taskgate.gateway.governance.record_calls import CallRecorder
from taskgate.gateway.governance.standing_grants import KnownPeople, StandingGrants
from taskgate.gateway.methods.shared_sessions import SessionEnds, SharedSessions
from taskgate.gateway.methods.subscriptions import Subscriptions
from taskgate.gateway.methods.temporary_scopes import TemporaryScopes
from taskgate.gateway.plan import Live, Plan, PublicAddress
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.asker import Asker, Models
from taskgate.gateway.questions.elicitations import (
    ElicitationPages,
    OwnElicitations,
    ServerElicitations,
    UrlElicitations,
)
from taskgate.gateway.questions.shared_inbox import SharedInbox
from taskgate.gateway.requests.admission import Budgets
from taskgate.gateway.requests.replies import RequestStateSigner
from taskgate.gateway.requests.sessions import OpenConversations, SessionTable
from taskgate.gateway.tasks.account_questions import AccountQuestions
from taskgate.gateway.tasks.conversation import Conversations
from taskgate.gateway.tasks.followers import Followers
from taskgate.gateway.tasks.questions import TaskInbox, TaskQuestions
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.sends import TaskResults
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.replicas import GRANTS, PINS, SCOPES, SERVERS, TOKENS, SessionStore
from taskgate.ports.store import Store
from taskgate.ports.upstream import Listener, Upstream
from taskgate.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing


class Servers(Protocol):
    """Makes upstreams. Their links tell the listener what servers say outside any request."""

    def configured(self, listener: Listener) -> Mapping[str, Upstream]:
        """All servers of the configuration."""
        ...

    def added(self, new: NewServer, listener: Listener) -> Upstream:
        """One that a caller brings along."""
        ...


@dataclass(slots=True, eq=False)
class Foundation:
    """What almost every part needs."""

    plan: Live[Plan]
    upstreams: Live[Mapping[str, Upstream]]
    store: Store
    metrics: Metrics
    events: EventHub
    state_signer: RequestStateSigner
    tracing: Tracing | None
    waterfall: Waterfall
    address: PublicAddress
    budgets: Budgets
    sessions: SessionTable
    conversations: OpenConversations
    subscriptions: Subscriptions
    recorder: CallRecorder
    usage: UsageCounter
    people: KnownPeople
    session_rows: SessionStore | None
    """Where other gateways find our sessions, if there are others."""
    sessions_elsewhere: Live[frozenset[str]]

    def session_ends(self, conversations: Conversations) -> SessionEnds:
        return SessionEnds(
            self.sessions, self.subscriptions, conversations, self.upstreams, self.events, self.session_rows
        )

    @property
    def home(self) -> str:
        """Under which name other gateways reach this one; empty where they cannot."""
        return self.session_rows.owner if self.session_rows is not None else ""


@dataclass(slots=True, eq=False)
class Lists:
    """What servers offer, what is made of it for each scope, and who looks at it first."""

    validation: Validation
    pins: Pins
    annotations: Annotations
    catalogs: Catalogs
    scope_record: ScopeRecord
    views: Views
    handed_out: HandedOut


@dataclass(slots=True, eq=False)
class Asking:
    """Who answers what servers ask."""

    activity: Activity
    models: Models
    urls: UrlElicitations
    asker: Asker
    pages: ElicitationPages
    own_pages: OwnElicitations
    server_pages: ServerElicitations


@dataclass(slots=True, eq=False)
class Running:
    """The runs of tasks, and everything below them."""

    records: TaskRecords
    conversations: Conversations
    followers: Followers
    questions: TaskQuestions
    account_questions: AccountQuestions
    results: TaskResults
    task_inbox: TaskInbox
    runs: Runs


@dataclass(slots=True, eq=False)
class Governed:
    approvals: Approvals
    ask_caller: AskCaller
    gate: CallGate


def changed_elsewhere(
    grants: StandingGrants, lists: Lists, temporary_scopes: TemporaryScopes, reload: Reload, people: KnownPeople
) -> Mapping[str, Callable[[], Awaitable[object]]]:
    """How each kind of thing that another gateway on the same store may have changed is read again."""
    return {
        GRANTS: grants.load,
        TOKENS: people.load,
        PINS: partial(lists.pins.load_again, lists.catalogs.offers),
        SCOPES: temporary_scopes.synchronize,
        SERVERS: reload.dynamic_servers_changed_elsewhere,
    }


def shared_sessions(base: Foundation, context: Context, ends: SessionEnds) -> SharedSessions | None:
    """None where no other gateway could go on with a session."""
    rows, wakeups = base.session_rows, base.store.wakeups
    if rows is None or wakeups is None:
        return None
    return SharedSessions(rows, wakeups, context, base.subscriptions, ends, base.sessions_elsewhere, base.state_signer)


def shared_inbox(base: Foundation, asking: Asking) -> SharedInbox | None:
    """None where no other gateway could show what is asked here."""
    rows, wakeups = base.store.shared_questions, base.store.wakeups
    if rows is None or wakeups is None:
        return None
    return SharedInbox(rows, wakeups, asking.activity.inbox, asking.pages, base.events)


def foundation(
    address: PublicAddress,
    store: Store,
    metrics: Metrics,
    seal_key: bytes,
    tracing: Tracing | None,
    session_rows: SessionStore | None,
) -> Foundation:
    people, live, events = KnownPeople(store), address.plan, EventHub()
    live.replace(people.merged(live.value))
    budgets = Budgets(live.value)
    metrics.show(*budgets.gauges())
    sessions = SessionTable(live)
    elsewhere: Live[frozenset[str]] = Live(frozenset())
    return Foundation(
        plan=live,
        upstreams=Live({}),
        store=store,
        metrics=metrics,
        events=events,
        state_signer=RequestStateSigner(seal_key),
        tracing=tracing,
        waterfall=Waterfall(),
        address=address,
        budgets=budgets,
        sessions=sessions,
        conversations=OpenConversations(sessions, elsewhere),
        subscriptions=Subscriptions(),
        recorder=CallRecorder(store, live),
        usage=UsageCounter(store, metrics, events),
        people=people,
        session_rows=session_rows,
        sessions_elsewhere=elsewhere,
    )
