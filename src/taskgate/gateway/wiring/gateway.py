"""Create a gateway."""

from __future__ import annotations

from functools import partial

from taskgate.gateway.caller_sessions import CallerSessions
from taskgate.gateway.catalog.unseen import UnseenNames
from taskgate.gateway.configured_servers import ConfiguredServers
from taskgate.gateway.dispatch import RequestDispatcher
from taskgate.gateway.dynamic_servers import DynamicServers
from taskgate.gateway.gateway import Gateway
from taskgate.gateway.governance.denials import Denials
from taskgate.gateway.governance.expiries import ApprovalExpiries
from taskgate.gateway.governance.pre_send_recheck import PreSendRecheck
from taskgate.gateway.governance.standing_grants import StandingGrants
from taskgate.gateway.history_reading import HistoryReading
from taskgate.gateway.method_tables import MethodTables
from taskgate.gateway.methods.session_durations import record_sessions
from taskgate.gateway.methods.temporary_scopes import TemporaryScopes
from taskgate.gateway.methods.vendor_methods import VendorMethods
from taskgate.gateway.scripts.fair_turns import StepTurns
from taskgate.gateway.scripts.script_parts import ScriptParts
from taskgate.gateway.scripts.script_runs import ScriptRuns
from taskgate.gateway.services.access import AccessServices
from taskgate.gateway.services.configuration import ConfigurationServices
from taskgate.gateway.services.console import (
    CallServices,
    ConsoleServices,
    DecisionServices,
    LoadServices,
    ServerServices,
)
from taskgate.gateway.services.lifecycle import GatewayLifecycle
from taskgate.gateway.services.transports import TransportServices
from taskgate.gateway.shared_caches import shared_caches
from taskgate.gateway.status import GatewayStatus
from taskgate.gateway.wiring.changes import wire_other_gateways, wire_reload
from taskgate.gateway.wiring.foundation import Foundation
from taskgate.gateway.wiring.governance import wire_governance
from taskgate.gateway.wiring.groups import Servers
from taskgate.gateway.wiring.lifecycle_steps import LifecycleSteps
from taskgate.gateway.wiring.lists import wire_lists, wire_notifications
from taskgate.gateway.wiring.questions import wire_questions, wire_relay, wire_suspended_calls
from taskgate.gateway.wiring.shared import changed_elsewhere, shared_inbox, shared_sessions
from taskgate.gateway.wiring.tasks import wire_runs, wire_task_engine, wire_task_metrics
from taskgate.gateway.wiring.use_cases import use_cases
from taskgate.ports.account_connector import AccountConnector


def wire_gateway(base: Foundation, servers: Servers, accounts: AccountConnector, *, local: bool) -> Gateway:
    """Create a gateway, ready to be started. `local`: the process that started it is its only caller."""
    lists, asking = wire_lists(base), wire_questions(base)
    notifications = wire_notifications(base, lists, asking)
    base.upstreams.replace(ConfiguredServers(servers.configured(notifications)))  # every link now has its listener
    dynamic_servers = DynamicServers(
        partial(servers.added, listener=notifications),
        base.store.shared,
        local=local,
    )
    expiries = ApprovalExpiries(base.store)
    grants = StandingGrants(base.store, base.plan, expiries)
    recheck = PreSendRecheck(
        plan=base.plan,
        catalogs=lists.catalogs,
        grants=grants,
        expiries=expiries,
        views=lists.views,
        people=base.people,
    )
    running = wire_runs(base, lists, asking, recheck, accounts)
    denials = Denials(base.journal, base.metrics, UnseenNames(base.plan, lists.catalogs, lists.views))
    governed = wire_governance(base, running, grants, expiries, recheck, denials=denials, catalogs=lists.catalogs)
    tasks = wire_task_engine(base, running, governed.approvals, recheck, lists.slow_tools)
    session_ends, suspended = base.session_ends(running.conversations), wire_suspended_calls(base, asking)
    temporary_scopes = TemporaryScopes(base.store, session_ends, base.events)
    reload = wire_reload(base, lists, asking, dynamic_servers, temporary_scopes)
    changes = changed_elsewhere(grants, lists, temporary_scopes, reload, base, accounts=accounts)
    caches = shared_caches(base.store, base.plan, changes)
    methods = use_cases(base, lists, asking, tasks, governed, relay=wire_relay(base, asking, suspended), reload=reload)
    scripts = ScriptRuns(
        ScriptParts(
            lookup=methods.lookup,
            durable=methods.durable,
            tasks=tasks,
            interpreter=base.interpreter,
            recheck=recheck,
            people=base.people,
            sources=base.script_sources,
            turns=StepTurns(base.interpreter.parallel_steps, base.budgets),
            key=base.script_key,
        ),
        base.events,
    )
    shared = shared_sessions(base, methods.following, session_ends, asking.activity)
    record_sessions(base.metrics, base.tracing, base.events, base.upstreams)
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
    others = wire_other_gateways(running, governed, tasks, caches, lists)
    inbox = shared_inbox(base, asking)
    steps = LifecycleSteps(
        base=base,
        lists=lists,
        asking=asking,
        running=running,
        governed=governed,
        tasks=tasks,
        task_metrics=wire_task_metrics(base, running, asking),
        temporary_scopes=temporary_scopes,
        caches=caches,
        session_ends=session_ends,
        shared_sessions=shared,
        shared_inbox=inbox,
        others=others,
        suspended=suspended,
        scripts=scripts,
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
            people=base.people,
            calls=CallServices(
                requests=requests,
                tasks=tasks,
                history=HistoryReading(base.store, base.state_signer),
                journal=base.journal,
                waterfall=base.waterfall,
            ),
            decisions=DecisionServices(
                approvals=governed.approvals,
                pins=lists.pins,
                activity=asking.activity,
                pages=asking.pages,
                models=asking.models,
            ),
            servers=ServerServices(
                lookup=methods.lookup,
                upstreams=base.upstreams,
                reload=reload,
                temporary_scopes=temporary_scopes,
                accounts=accounts,
                unmatched=lists.unmatched,
            ),
            load=LoadServices(sessions=base.sessions, budgets=base.budgets, admission=reload.admission),
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
            journal=base.journal,
            upkeep=base.upkeep,
            start_steps=steps.start(),
            refresh_steps=steps.refresh(),
            reap_steps=steps.reap(),
            close_steps=steps.close(),
            close_tracing=steps.close_tracing,
        ),
    )
