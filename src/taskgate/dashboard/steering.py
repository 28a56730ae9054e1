"""The sections of the console that manage the gateway: rules, usage, servers, audit log, scopes, system and waterfall."""

from __future__ import annotations

from taskgate.dashboard.audit_api import Audit
from taskgate.dashboard.audit_pages import AuditPages
from taskgate.dashboard.configuration import Configuration
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route
from taskgate.dashboard.rules import Rules
from taskgate.dashboard.rules_api import RulesApi
from taskgate.dashboard.rules_pages import RulesPages
from taskgate.dashboard.servers_api import Servers
from taskgate.dashboard.servers_pages import ServersPages
from taskgate.dashboard.system_pages import System, SystemPages
from taskgate.dashboard.usage_api import Usage
from taskgate.dashboard.usage_pages import UsagePages
from taskgate.gateway.services.console import ConsoleServices


class Steering:
    def __init__(self, gateway: ConsoleServices, records: Records, configuration: Configuration) -> None:
        self._rules = Rules(gateway, records, configuration)
        self._usage = Usage(records)
        self._servers = Servers(gateway, records, configuration)
        self._audit = Audit(gateway, records)
        self._system = System(gateway, records, configuration)

    def routes(self) -> tuple[Route, ...]:
        """Of the API."""
        return (
            *RulesApi(self._rules).routes(),
            *self._usage.routes(),
            *self._servers.routes(),
            *self._audit.routes(),
            *self._system.routes(),
        )

    def pages(self, frame: Frame) -> tuple[Route, ...]:
        return (
            *RulesPages(self._rules, frame).routes(),
            *UsagePages(self._usage, frame).routes(),
            *ServersPages(self._servers, frame).routes(),
            *AuditPages(self._audit, frame).routes(),
            *SystemPages(self._system, frame).routes(),
        )
