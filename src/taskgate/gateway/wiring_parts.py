"""Groups of parts that `wiring` makes together and hands on, the use cases among them, and what it needs from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from taskgate.core.waterfall import Waterfall
from taskgate.gateway.calls.call_tool import ToolCalls
from taskgate.gateway.calls.durable_calls import DurableCalls
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.calls.readings import Readings
from taskgate.gateway.calls.sending import Sending
from taskgate.gateway.calls.skill_discovery import SkillDiscovery
from taskgate.gateway.calls.skill_files import SkillFiles
from taskgate.gateway.calls.skills import Skills
from taskgate.gateway.calls.task_contract import TaskContract
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.catalog.known_skills import KnownSkills
from taskgate.gateway.catalog.slow_tools import SlowTools
from taskgate.gateway.catalog.validate import ArgumentChecks, Completions, HandedOut, Validation
from taskgate.gateway.catalog.views import Views
from taskgate.gateway.changes import Reload
from taskgate.gateway.dynamic_servers import NewServer, ScopeRecord
from taskgate.gateway.events import EventHub
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.ask_caller import AskCaller, ByUrl
from taskgate.gateway.governance.call_log import CallLog, UsageCounter
from taskgate.gateway.governance.gate import CallGate, HeldReadings
from taskgate.gateway.governance.pinned_contents import PinnedContents
from taskgate.gateway.governance.pins import Annotations, Pins
from taskgate.gateway.governance.record_calls import CallRecorder, Denials
from taskgate.gateway.governance.standing_grants import KnownPeople, StandingGrants
from taskgate.gateway.method_tables import Methods
from taskgate.gateway.methods.completion import Completing
from taskgate.gateway.methods.following import Following
from taskgate.gateway.methods.session_ends import SessionEnds
from taskgate.gateway.methods.shared_sessions import SharedSessions
from taskgate.gateway.methods.subscriptions import Subscriptions
from taskgate.gateway.methods.temporary_scopes import TemporaryScopes
from taskgate.gateway.own_tools import use_resources
from taskgate.gateway.own_tools.await_activity import WAITING_TOOLS
from taskgate.gateway.own_tools.follow_tasks import QUESTION_TOOLS, TASK_TOOLS, QuestionParts
from taskgate.gateway.own_tools.look_around import LOOKING_TOOLS, MANAGING_TOOLS, LookingParts, ManagingParts
from taskgate.gateway.own_tools.search_tools import EXECUTE_TOOLS, SEARCH_TOOLS, ExecuteParts, SearchParts
from taskgate.gateway.own_tools.table import OwnTools
from taskgate.gateway.own_tools.task_card import CARD_TOOLS, CardParts
from taskgate.gateway.own_tools.timers_and_logs import SESSION_TOOLS, SessionParts
from taskgate.gateway.own_tools.tool import TaskParts, usable
from taskgate.gateway.own_tools.use_resources import ResourceParts
from taskgate.gateway.own_tools.use_skills import SKILL_TOOLS, SkillParts
from taskgate.gateway.plan import Live, Plan, PublicAddress
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.asker import Asker, Models
from taskgate.gateway.questions.elicitations import (
    ElicitationPages,
    OwnElicitations,
    ServerElicitations,
    UrlElicitations,
)
from taskgate.gateway.questions.separated import SeparatedServers
from taskgate.gateway.questions.shared_inbox import SharedInbox
from taskgate.gateway.relay.relay import Relay
from taskgate.gateway.requests.budgets import Budgets
from taskgate.gateway.requests.open_conversations import OpenConversations
from taskgate.gateway.requests.request_state import RequestStateSigner
from taskgate.gateway.requests.session_table import SessionTable
from taskgate.gateway.tasks.account_questions import AccountQuestions
from taskgate.gateway.tasks.conversation import Conversations
from taskgate.gateway.tasks.conversation_homes import ConversationHomes
from taskgate.gateway.tasks.deadlines import TaskDeadlines
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.followers import Followers
from taskgate.gateway.tasks.presence import CallerPresence
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_inbox import TaskInbox
from taskgate.gateway.tasks.task_polls import TaskPolls
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.gateway.tasks.task_results import TaskResults
from taskgate.ports.credentials import AccountConnector
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
    call_log: CallLog
    people: KnownPeople
    separated: SeparatedServers
    session_rows: SessionStore | None
    """Where other gateways find our sessions, if there are others."""
    sessions_elsewhere: Live[frozenset[str]]

    def session_ends(self, conversations: Conversations) -> SessionEnds:
        return SessionEnds(
            self.sessions, self.subscriptions, conversations, self.upstreams, events=self.events, rows=self.session_rows
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
    contents: PinnedContents
    annotations: Annotations
    catalogs: Catalogs
    scope_record: ScopeRecord
    views: Views
    slow_tools: SlowTools
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
    deadlines: TaskDeadlines
    polls: TaskPolls
    presence: CallerPresence


@dataclass(slots=True, eq=False)
class Governed:
    approvals: Approvals
    ask_caller: AskCaller
    gate: CallGate
    denials: Denials


def changed_elsewhere(
    grants: StandingGrants,
    lists: Lists,
    temporary_scopes: TemporaryScopes,
    reload: Reload,
    base: Foundation,
    *,
    accounts: AccountConnector,
) -> Mapping[str, Callable[[], Awaitable[object]]]:
    """How each kind of thing that another gateway on the same store may have changed is read again."""

    async def identity_records() -> None:
        await base.people.load()
        await base.separated.load()
        await accounts.look_again()
        await reload.drained_elsewhere()

    return {
        GRANTS: grants.load,
        TOKENS: identity_records,
        PINS: partial(lists.pins.load_again, lists.catalogs.offers),
        SCOPES: temporary_scopes.synchronize,
        SERVERS: reload.dynamic_servers_changed_elsewhere,
    }


def shared_sessions(
    base: Foundation, following: Following, ends: SessionEnds, activity: Activity
) -> SharedSessions | None:
    """None where no other gateway could go on with a session."""
    rows, wakeups = base.session_rows, base.store.wakeups
    if rows is None or wakeups is None:
        return None
    return SharedSessions(
        rows,
        wakeups,
        base.sessions,
        following,
        ends,
        plan=base.plan,
        elsewhere=base.sessions_elsewhere,
        state_signer=base.state_signer,
        conversations=ConversationHomes(
            rows,
            base.sessions_elsewhere,
            lambda: [feed.key.stream for feed in activity.feeds() if feed.key.session_id is None],
        ),
    )


def use_cases(
    base: Foundation,
    lists: Lists,
    asking: Asking,
    tasks: TaskEngine,
    governed: Governed,
    *,
    relay: Relay,
    reload: Reload,
) -> Methods:
    """The use cases, each with what it needs."""
    lookup = Lookup(base.plan, lists.catalogs, lists.views)
    sending = Sending(base.plan, base.upstreams, relay, base.budgets, lists.handed_out)
    completions, held = Completions(base.plan, base.events), HeldReadings(governed.gate, tasks, base.plan, base.events)
    skill_files = SkillFiles(lookup, sending, KnownSkills(lists.catalogs), lists.pins)
    readings = Readings(lookup, sending, held, completions, lists.contents, skill_files)
    arguments = ArgumentChecks(base.plan, lists.validation, completions)
    durable = DurableCalls(
        lookup=lookup,
        arguments=arguments,
        budgets=base.budgets,
        gate=governed.gate,
        by_url=ByUrl(base.state_signer, governed.approvals, tasks, base.plan),
        tasks=tasks,
        call_log=base.call_log,
        contract=TaskContract(lookup, base.metrics.validation_errors.add),
    )
    tool_calls = ToolCalls(
        lookup, sending, durable, tasks, arguments=arguments, validation=lists.validation, call_log=base.call_log
    )
    servers = ManagingParts(
        lookup=lookup,
        upstreams=base.upstreams,
        dynamic_servers=reload.dynamic_servers,
        servers_changed=reload.dynamic_servers_changed,
        held=held,
        record=base.store.record,
        activity=asking.activity,
    )
    skills = Skills(readings, skill_files, SkillDiscovery(lookup, base.upstreams))
    card = CardParts(TaskParts(tasks, asking.activity), base.address)
    return Methods(
        lookup=lookup,
        upstreams=base.upstreams,
        tool_calls=tool_calls,
        own_tools=_own_tools(tool_calls, readings, card, servers, skills, denials=governed.denials),
        readings=readings,
        skills=skills,
        completing=Completing(lookup, sending, completions),
        following=Following(base.subscriptions, readings, sending, tasks),
        tasks=tasks.methods,
        dynamic_servers=reload.dynamic_servers,
    )


def _own_tools(
    tool_calls: ToolCalls,
    readings: Readings,
    card: CardParts,
    servers: ManagingParts,
    skills: Skills,
    *,
    denials: Denials,
) -> OwnTools:
    """Our own tools and resources, each family of them with what it needs."""
    following = card.following
    lookup, activity = readings.lookup, following.activity
    helpers = {
        **usable(TASK_TOOLS, following),
        **usable(WAITING_TOOLS, following),
        **usable(QUESTION_TOOLS, QuestionParts(activity.inbox, following.tasks.store)),
    }
    resources = ResourceParts(readings, following)
    tools = {
        **helpers,
        **usable(LOOKING_TOOLS, LookingParts(lookup, servers.upstreams)),
        **usable(EXECUTE_TOOLS, ExecuteParts(lookup, tool_calls, following)),
        **usable(use_resources.TOOLS, resources),
        **usable(SESSION_TOOLS, SessionParts(lookup, servers.upstreams, activity)),
        **usable(MANAGING_TOOLS, servers),
        **usable(SEARCH_TOOLS, SearchParts(lookup, tool_calls, activity, helpers)),
        **usable(CARD_TOOLS, card),
        **usable(SKILL_TOOLS, SkillParts(skills, activity)),
    }
    return OwnTools(lookup, tools, resources, denials)


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
    *,
    seal_key: bytes,
    tracing: Tracing | None,
    session_rows: SessionStore | None,
) -> Foundation:
    """`address` has the plan that the gateway begins with."""
    live, events = address.plan, EventHub()
    people = KnownPeople(store, events)
    live.replace(people.merged(live.value))
    budgets = Budgets(live.value)
    metrics.show(*budgets.gauges())
    sessions = SessionTable(live)
    elsewhere: Live[frozenset[str]] = Live(frozenset())
    upstreams: Live[Mapping[str, Upstream]] = Live({})
    recorder, usage = CallRecorder(store, live), UsageCounter(store, metrics, events)
    return Foundation(
        plan=live,
        upstreams=upstreams,
        store=store,
        metrics=metrics,
        events=events,
        state_signer=RequestStateSigner(seal_key, store.now_ms),
        tracing=tracing,
        waterfall=Waterfall(),
        address=address,
        budgets=budgets,
        sessions=sessions,
        conversations=OpenConversations(sessions, elsewhere),
        subscriptions=Subscriptions(),
        recorder=recorder,
        usage=usage,
        call_log=CallLog(store, live, recorder, usage),
        people=people,
        separated=SeparatedServers(store, upstreams),
        session_rows=session_rows,
        sessions_elsewhere=elsewhere,
    )
