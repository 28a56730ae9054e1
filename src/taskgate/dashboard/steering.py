"""The sections of the console that steer the gateway, put together: their routes of the API, and their pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskgate.dashboard.audit_pages import Audit, AuditPages
from taskgate.dashboard.configuration import Configuration
from taskgate.dashboard.records import Records
from taskgate.dashboard.routes import Route
from taskgate.dashboard.rules_pages import Rules, RulesApi, RulesPages
from taskgate.dashboard.servers_pages import Servers, ServersPages
from taskgate.dashboard.system_pages import System, SystemPages
from taskgate.dashboard.usage_pages import Usage, UsagePages
from taskgate.gateway.gateway import Gateway

if TYPE_CHECKING:
    from taskgate.dashboard.frame import Frame


class Steering:
    def __init__(self, gateway: Gateway, records: Records, configuration: Configuration) -> None:
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
