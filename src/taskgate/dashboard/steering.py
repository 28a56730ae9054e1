"""The sections of the console that manage the gateway: rules, usage, servers, audit log, scopes, system and waterfall."""

from __future__ import annotations

from taskgate.dashboard.audit_api import Audit
from taskgate.dashboard.audit_pages import AuditPages
from taskgate.dashboard.configuration import Configuration
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.history_api import HistoryApi
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route
from taskgate.dashboard.rules import Rules
from taskgate.dashboard.rules_api import RulesApi
from taskgate.dashboard.rules_pages import RulesPages
from taskgate.dashboard.scope_pages import ScopePages
from taskgate.dashboard.scopes_api import ScopesApi
from taskgate.dashboard.servers_api import Servers
from taskgate.dashboard.servers_pages import ServersPages
from taskgate.dashboard.subject_numbers import SubjectNumbers
from taskgate.dashboard.system_api import System
from taskgate.dashboard.system_pages import SystemPages
from taskgate.dashboard.usage_api import Usage
from taskgate.dashboard.usage_pages import UsagePages
from taskgate.dashboard.waterfall_api import RecentRequests
from taskgate.dashboard.waterfall_pages import WaterfallPages
from taskgate.gateway.governance.evaluate import rule_book
from taskgate.gateway.own_tools.script_stubs import stubs_of_scope
from taskgate.gateway.services.console import ConsoleServices


class Steering:
    def __init__(self, services: ConsoleServices, records: Records, configuration: Configuration) -> None:
        store, plan = services.calls.tasks.store, services.plan
        self.rules = Rules(
            live_plan=plan,
            store=store,
            listed=services.servers.catalogs,
            unmatched=services.servers.unmatched,
            rule_book=rule_book,
            records=records,
            configuration=configuration,
        )
        self._rules_api = RulesApi(self.rules)
        self._usage = Usage(records)
        self._servers = Servers(
            plan=plan,
            upstreams=services.servers.upstreams,
            lists=services.servers.catalogs,
            pins=services.decisions.pins,
            draining=services.servers.reload,
            budgets=services.load.budgets,
            audit_log=store,
            records=records,
            configuration=configuration,
        )
        self._scopes = ScopesApi(
            plan=plan,
            views=services.servers.lookup.views,
            temporary=services.servers.temporary_scopes,
            stubs=stubs_of_scope,
            address=services.address,
            records=records,
        )
        self.history = HistoryApi(services.calls.history, store.now_ms, plan)
        self._audit = Audit(store, records)
        self._records = records
        self._system = System(
            plan=plan,
            store=store,
            open_calls=services.load.admission.open_calls,
            sessions=services.load.sessions,
            configuration=configuration,
        )
        self._requests = RecentRequests(records)

    def routes(self) -> tuple[Route, ...]:
        """Routes of the JSON API."""
        return (
            *self._rules_api.routes(),
            *self._usage.routes(),
            *self._servers.routes(),
            *self._scopes.routes(),
            *self.history.routes(),
            *self._audit.routes(),
            *self._system.routes(),
            *self._requests.routes(),
        )

    def pages(self, frame: Frame, numbers: SubjectNumbers) -> tuple[Route, ...]:
        return (
            *RulesPages(self._rules_api, frame).routes(),
            *UsagePages(self._usage, frame).routes(),
            *ServersPages(self._servers, numbers, frame).routes(),
            *ScopePages(self._scopes, frame).routes(),
            *AuditPages(self._audit, self.history, self._records, frame).routes(),
            *SystemPages(self._system, frame).routes(),
            *WaterfallPages(self._requests, frame).routes(),
        )
