"""The composition of the gateway: every part is made here, from the bottom up, with everything it needs.

A part gets its collaborators when it is made and never afterwards. What it must be told of later it subscribes to on the event
hub; what a reload replaces it reads from a `Live` value.
"""

from __future__ import annotations

from functools import partial

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.catalog.entry import EntryKind
from taskgate.gateway.caller_sessions import CallerSessions
from taskgate.gateway.calls.tool_facts import ToolFacts
from taskgate.gateway.catalog.catalogs import Catalogs, Quarantine
from taskgate.gateway.catalog.offer import CatalogMemory, Offer
from taskgate.gateway.catalog.slow_tools import SlowTools
from taskgate.gateway.catalog.unseen import UnseenNames
from taskgate.gateway.catalog.validate import HandedOut, Validation
from taskgate.gateway.catalog.views import Views
from taskgate.gateway.changes import Configured, OtherGateways, Reload, SharedCaches, shared_caches
from taskgate.gateway.dispatch import RequestDispatcher
from taskgate.gateway.dynamic_servers import DynamicServers, ScopeRecord
from taskgate.gateway.gateway import Gateway
from taskgate.gateway.governance.announce import audit_of
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.ask_caller import AskCaller
from taskgate.gateway.governance.evaluate import PreSendRecheck
from taskgate.gateway.governance.expiries import ApprovalExpiries
from taskgate.gateway.governance.gate import CallGate
from taskgate.gateway.governance.pinned_contents import PinnedContents
from taskgate.gateway.governance.pins import Annotations, Pins
from taskgate.gateway.governance.record_calls import Denials
from taskgate.gateway.governance.standing_grants import StandingGrants
from taskgate.gateway.lifecycle_steps import LifecycleSteps
from taskgate.gateway.method_tables import MethodTables
from taskgate.gateway.methods.temporary_scopes import TemporaryScopes
from taskgate.gateway.methods.upstream_notifications import UpstreamNotifications
from taskgate.gateway.methods.vendor_methods import VendorMethods
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.asker import Asker, Models, shown_to_operator
from taskgate.gateway.questions.elicitations import (
    ElicitationPages,
    OwnElicitations,
    ServerElicitations,
    UrlElicitations,
)
from taskgate.gateway.questions.untied import UntiedQuestions
from taskgate.gateway.relay.relay import Relay
from taskgate.gateway.relay.suspended_calls import SuspendedCalls
from taskgate.gateway.requests.admission import Admission
from taskgate.gateway.services.access import AccessServices
from taskgate.gateway.services.configuration import ConfigurationServices
from taskgate.gateway.services.console import ConsoleServices
from taskgate.gateway.services.lifecycle import GatewayLifecycle
from taskgate.gateway.services.transports import TransportServices
from taskgate.gateway.status import GatewayStatus
from taskgate.gateway.tasks.account_questions import AccountQuestions
from taskgate.gateway.tasks.attempts import Attempts
from taskgate.gateway.tasks.conversation import Conversations
from taskgate.gateway.tasks.deadlines import TaskDeadlines
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.followers import Followers
from taskgate.gateway.tasks.held_replies import HeldReplies
from taskgate.gateway.tasks.methods import TaskMethods
from taskgate.gateway.tasks.presence import CallerPresence
from taskgate.gateway.tasks.promotion import PromotionParts, Promotions
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.recovery import Recovery
from taskgate.gateway.tasks.run_queue import RunQueue
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_call import TaskCall
from taskgate.gateway.tasks.task_changes import TaskChanges
from taskgate.gateway.tasks.task_inbox import TaskInbox
from taskgate.gateway.tasks.task_metrics import TaskMetrics
from taskgate.gateway.tasks.task_polls import TaskPolls
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.gateway.tasks.task_results import TaskResults
from taskgate.gateway.tasks.upstream_listing import UpstreamListing
from taskgate.gateway.tasks.upstream_tasks import UpstreamTasks
from taskgate.gateway.wiring_parts import (
    Asking,
    Foundation,
    Governed,
    Lists,
    Running,
    Servers,
    changed_elsewhere,
    shared_inbox,
    shared_sessions,
    use_cases,
)
from taskgate.ports.approval_store import ApprovalRequest
from taskgate.ports.credentials import AccountConnector
from taskgate.turns import in_turns


def wire_gateway(base: Foundation, servers: Servers, accounts: AccountConnector, *, local: bool) -> Gateway:
    """A whole gateway, ready to be started. `local`: its only caller started it."""
    lists, asking = _lists(base), _asking(base)
    notifications = _notifications(base, lists, asking)
    base.upstreams.replace(servers.configured(notifications))  # from here on: the listener of every link is there
    dynamic_servers = DynamicServers(
        partial(servers.added, listener=notifications), base.store.shared_servers, local=local
    )
    expiries = ApprovalExpiries(base.store)
    grants = StandingGrants(base.store, base.plan, expiries)
    recheck = PreSendRecheck(base.plan, lists.catalogs, grants, expiries, lists.views)
    running = _running(base, lists, asking, recheck, accounts)
    denials = Denials(base.store, base.metrics, UnseenNames(base.plan, lists.catalogs, lists.views))
    governed = _governed(base, running, grants, expiries, recheck, denials=denials)
    tasks = _task_engine(base, running, governed.approvals, recheck, lists.slow_tools)
    session_ends, suspended = base.session_ends(running.conversations), _suspended(base, asking)
    temporary_scopes = TemporaryScopes(base.store, session_ends, base.events)
    reload = _reload(base, lists, asking, dynamic_servers, temporary_scopes)
    changes = changed_elsewhere(grants, lists, temporary_scopes, reload, base, accounts=accounts)
    caches = shared_caches(base.store, base.plan, changes)
    methods = use_cases(base, lists, asking, tasks, governed, relay=_relay(base, asking, suspended), reload=reload)
    shared = shared_sessions(base, methods.following, session_ends, asking.activity)
    tables = MethodTables(methods, shared)
    status = GatewayStatus()
    requests = RequestDispatcher(
        plan=base.plan,
        status=status,
        tasks=tasks,
        metrics=base.metrics,
        budgets=base.budgets,
        admission=reload.admission,
        caches=caches,
        denials=denials,
        vendor=VendorMethods(methods.tool_calls, tasks, asking.own_pages),
        waterfall=base.waterfall,
        tracing=base.tracing,
        stateful=tables.stateful(),
        stateless=tables.stateless(),
    )
    sessions = CallerSessions(
        plan=base.plan,
        status=status,
        upstreams=base.upstreams,
        lookup=methods.lookup,
        table=base.sessions,
        ends=session_ends,
        shared=shared,
        activity=asking.activity,
        metrics=base.metrics,
        denials=denials,
    )
    others = _others(running, governed, tasks, caches, lists)
    inbox = shared_inbox(base, asking)
    steps = LifecycleSteps(
        base=base,
        lists=lists,
        asking=asking,
        running=running,
        governed=governed,
        tasks=tasks,
        task_metrics=_task_metrics(base, running, asking),
        temporary_scopes=temporary_scopes,
        caches=caches,
        session_ends=session_ends,
        shared_sessions=shared,
        shared_inbox=inbox,
        others=others,
        suspended=suspended,
        dynamic_servers=dynamic_servers,
    )
    return Gateway(
        transports=TransportServices(
            plan=base.plan, status=status, requests=requests, sessions=sessions, events=base.events
        ),
        access=AccessServices(plan=base.plan, temporary_scopes=temporary_scopes, address=base.address, denials=denials),
        console=ConsoleServices(
            plan=base.plan,
            address=base.address,
            events=base.events,
            requests=requests,
            tasks=tasks,
            approvals=governed.approvals,
            pins=lists.pins,
            activity=asking.activity,
            pages=asking.pages,
            lookup=methods.lookup,
            upstreams=base.upstreams,
            reload=reload,
            temporary_scopes=temporary_scopes,
            people=base.people,
            accounts=accounts,
            waterfall=base.waterfall,
            sessions=base.sessions,
            budgets=base.budgets,
            admission=reload.admission,
        ),
        configuration=ConfigurationServices(
            address=base.address,
            people=base.people,
            temporary_scopes=temporary_scopes,
            announcer=governed.approvals.announcer,
            listener=notifications,
            reload=reload,
        ),
        lifecycle=GatewayLifecycle(
            plan=base.plan,
            status=status,
            address=base.address,
            tasks=tasks,
            catalogs=lists.catalogs,
            sessions=base.sessions,
            session_ends=session_ends,
            shared_sessions=shared,
            subscriptions=base.subscriptions,
            others=others,
            people=base.people,
            call_log=base.call_log,
            denials=denials,
            start_steps=steps.start(),
            refresh_steps=steps.refresh(),
            reap_steps=steps.reap(),
            close_steps=steps.close(),
        ),
    )


def _lists(base: Foundation) -> Lists:
    quarantine = Quarantine()
    validation = Validation(base.plan, base.metrics.schema_violations.add)
    pins = Pins(base.store, base.plan, quarantine, base.events)
    annotations = Annotations(base.plan, quarantine, base.metrics)

    async def inspect(server: str, offer: Offer) -> None:
        await in_turns(pins.inspecting(server, offer))
        await in_turns(annotations.looking(server, offer))
        await in_turns(validation.looking(offer.entries.get(EntryKind.TOOL, ())))

    limits = base.plan.value.limits
    memory = CatalogMemory(base.store)
    catalogs = Catalogs(base.upstreams, limits, inspect, quarantine, memory, metrics=base.metrics, events=base.events)
    scope_record = ScopeRecord(base.store, base.metrics)
    slow_tools = SlowTools()
    views = Views(catalogs, scope_record, slow_tools)
    contents = PinnedContents(pins, base.upstreams, base.plan, base.events)
    return Lists(validation, pins, contents, annotations, catalogs, scope_record, views, slow_tools, HandedOut())


def _asking(base: Foundation) -> Asking:
    activity = Activity(base.store, base.plan, base.upstreams, base.address, base.conversations, events=base.events)
    models = Models(base.plan, base.budgets, shown_to_operator(activity.inbox), base.store.record, base.usage.spent)
    urls = UrlElicitations(base.plan, base.store.record, base.events)
    pages = ElicitationPages(base.events)
    own_pages = OwnElicitations(base.plan, urls, pages, base.address)
    return Asking(
        activity,
        models,
        urls,
        Asker(activity, models, urls, base.plan),
        pages,
        own_pages,
        ServerElicitations(base.plan, own_pages),
    )


def _notifications(base: Foundation, lists: Lists, asking: Asking) -> UpstreamNotifications:
    return UpstreamNotifications(
        base.plan,
        lists.catalogs,
        lists.views,
        base.sessions,
        base.subscriptions,
        activity=asking.activity,
        untied=UntiedQuestions(base.sessions, asking.asker, base.separated),
        urls=asking.urls,
        pages=asking.server_pages,
        events=base.events,
    )


def _running(
    base: Foundation, lists: Lists, asking: Asking, recheck: PreSendRecheck, accounts: AccountConnector
) -> Running:
    events, urls, facts = base.events, asking.urls, ToolFacts(lists.catalogs, lists.validation, lists.handed_out)
    records = TaskRecords(base.store, TaskChanges(events), base.plan)
    conversations = Conversations(events)
    followers = Followers(records, base.sessions, base.conversations, urls, base.subscriptions.following, events=events)
    task_inbox = TaskInbox(asking.activity, asking.asker, asking.models, records, conversations)
    questions = TaskQuestions(
        records, urls, events, push=followers.ask_on_stream, keep=task_inbox.keep, expiry_s=asking.asker.timeout_s
    )
    deadlines = TaskDeadlines(base.store, events)
    account_questions = AccountQuestions(
        accounts,
        urls,
        questions,
        deadlines,
        base.state_signer,
        login_of=lambda principal: base.plan.value.governing.login_of(principal),
    )
    results = TaskResults(records, followers, urls, truncate=base.budgets.truncate, check_output=facts.check_output)
    following = UpstreamTasks(
        records, questions, results, events, deadlines=deadlines, can_be_task=facts.can_be_upstream_task
    )
    queue = RunQueue(base.plan, records.store.note)
    base.metrics.show(*queue.gauges())
    call = TaskCall(records, questions, deadlines, waterfall=base.waterfall, tracing=base.tracing, events=events)
    attempts = Attempts(
        records,
        questions,
        results,
        following,
        queue,
        call=call,
        accounts=account_questions,
        recheck=recheck,
        deadlines=deadlines,
        upstreams=base.upstreams,
        budgets=base.budgets,
    )
    runs, polls = Runs(records, attempts, conversations, base.upstreams, events), TaskPolls()
    return Running(
        records,
        conversations,
        followers,
        questions,
        account_questions,
        results=results,
        task_inbox=task_inbox,
        runs=runs,
        deadlines=deadlines,
        polls=polls,
        presence=CallerPresence(base.store, followers, polls, asking.activity.is_awaited_by, events),
    )


def _governed(
    base: Foundation,
    running: Running,
    grants: StandingGrants,
    expiries: ApprovalExpiries,
    recheck: PreSendRecheck,
    *,
    denials: Denials,
) -> Governed:
    approvals = Approvals(
        running.records,
        running.runs,
        running.presence,
        plan=base.plan,
        grants=grants,
        expiries=expiries,
        address=base.address,
        metrics=base.metrics,
        events=base.events,
    )
    return Governed(
        approvals,
        AskCaller(approvals, running.followers, base.store, base.plan, base.events),
        CallGate(base.store, base.plan, approvals, recheck, base.metrics, denials=denials, recorder=base.recorder),
        denials,
    )


def _task_metrics(base: Foundation, running: Running, asking: Asking) -> TaskMetrics:
    inbox, events = asking.activity.inbox, base.events
    return TaskMetrics(running.records, inbox, base.sessions, base.store, base.metrics, events=events)


def _others(
    running: Running, governed: Governed, tasks: TaskEngine, caches: SharedCaches | None, lists: Lists
) -> OtherGateways:
    return OtherGateways(
        wakeups=tasks.store.wakeups,
        records=running.records,
        runs=running.runs,
        questions=running.questions,
        approvals=governed.approvals,
        recovery=tasks.recovery,
        caches=caches,
        catalogs=lists.catalogs,
    )


def _task_engine(
    base: Foundation, running: Running, approvals: Approvals, recheck: PreSendRecheck, slow_tools: SlowTools
) -> TaskEngine:
    records, runs, questions, followers = running.records, running.runs, running.questions, running.followers
    upstream_listing = UpstreamListing(base.upstreams, base.state_signer, base.store, base.events)

    def audit_approval(approval: ApprovalRequest, task_id: str) -> AuditEntry:
        return audit_of(base.plan.value, approval, task_id)

    parts = PromotionParts(
        records=records,
        runs=runs,
        conversations=running.conversations,
        questions=questions,
        results=running.results,
        recheck=recheck,
        adopt_questions=running.task_inbox.adopt,
    )
    return TaskEngine(
        plan=base.plan,
        store=base.store,
        events=base.events,
        records=records,
        conversations=running.conversations,
        questions=questions,
        account_questions=running.account_questions,
        runs=runs,
        promotions=Promotions(plan=base.plan, parts=parts, tools=slow_tools),
        methods=TaskMethods(
            records,
            runs,
            questions,
            upstream_listing,
            followers,
            conversations=base.conversations,
            state_signer=base.state_signer,
            polls=running.polls,
            presence=running.presence,
        ),
        recovery=Recovery(records, runs, running.deadlines, approvals.time_passed, approvals.expiries.over),
        followers=followers,
        presence=running.presence,
        held_replies=HeldReplies(),
        address=base.address,
        audit_approval=audit_approval,
    )


def _reload(
    base: Foundation, lists: Lists, asking: Asking, dynamic_servers: DynamicServers, temporary_scopes: TemporaryScopes
) -> Reload:
    admission = Admission(base.plan.value.limits, base.metrics)
    base.metrics.show(*admission.gauges())
    return Reload(
        configured=Configured(base.plan.value, base.upstreams.value),
        plan=base.plan,
        upstreams=base.upstreams,
        dynamic_servers=dynamic_servers,
        temporary_scopes=temporary_scopes,
        people=base.people,
        views=lists.views,
        catalogs=lists.catalogs,
        activity=asking.activity,
        budgets=base.budgets,
        admission=admission,
        scope_record=lists.scope_record,
        pins=lists.pins,
        annotations=lists.annotations,
        store=base.store,
        separated=base.separated,
        events=base.events,
    )


def _suspended(base: Foundation, asking: Asking) -> SuspendedCalls:
    return SuspendedCalls(asking.urls, asking.asker.otherwise, asking.asker.refusal, base.home)


def _relay(base: Foundation, asking: Asking, suspended: SuspendedCalls) -> Relay:
    return Relay(
        base.state_signer,
        suspended,
        asking.urls,
        ask=asking.asker.ask_caller,
        ask_otherwise=asking.asker.otherwise,
        refusal=asking.asker.refusal,
        waterfall=base.waterfall,
        tracing=base.tracing,
        events=base.events,
    )
