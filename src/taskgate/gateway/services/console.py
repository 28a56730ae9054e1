"""What the console and the JSON API use: the parts of the gateway that the pages show or change."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from taskgate.core.waterfall import Waterfall
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.dispatch import RequestDispatcher
from taskgate.gateway.events import EventHub
from taskgate.gateway.governance.approvals import Approvals
from taskgate.gateway.governance.journal import Journal
from taskgate.gateway.governance.known_people import KnownPeople
from taskgate.gateway.governance.pins import Pins
from taskgate.gateway.governance.unmatched_report import UnmatchedReport
from taskgate.gateway.history_reading import HistoryReading
from taskgate.gateway.methods.temporary_scopes import TemporaryScopes
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.public_address import PublicAddress
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.elicitation_pages import ElicitationPages
from taskgate.gateway.questions.model_sampling import Models
from taskgate.gateway.reload import Reload
from taskgate.gateway.requests.admission import Admission
from taskgate.gateway.requests.budgets import Budgets
from taskgate.gateway.requests.session_table import SessionTable
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.ports.account_connector import AccountConnector
from taskgate.ports.upstream import Upstream


class CallServices(msgspec.Struct, eq=False, kw_only=True):
    """Calls: pages of tasks and of the history, and calls that are made from the console."""

    requests: RequestDispatcher
    """Runs the calls that are made from the console."""
    tasks: TaskEngine
    history: HistoryReading
    journal: Journal
    waterfall: Waterfall


class DecisionServices(msgspec.Struct, eq=False, kw_only=True):
    """What people decide or answer: approvals, changed definitions, questions and sampling requests."""

    approvals: Approvals
    pins: Pins
    activity: Activity
    pages: ElicitationPages
    models: Models


class ServerServices(msgspec.Struct, eq=False, kw_only=True):
    """Servers and what they list, the accounts at them, and the scopes that contain them."""

    lookup: Lookup
    upstreams: Live[Mapping[str, Upstream]]
    reload: Reload
    temporary_scopes: TemporaryScopes
    accounts: AccountConnector
    unmatched: UnmatchedReport
    """The patterns of the configuration that match nothing that they list."""

    @property
    def catalogs(self) -> Catalogs:
        return self.lookup.catalogs


class LoadServices(msgspec.Struct, eq=False, kw_only=True):
    """Usage of limited resources: sessions, budgets and open calls."""

    sessions: SessionTable
    budgets: Budgets
    admission: Admission


class ConsoleServices(msgspec.Struct, eq=False, kw_only=True):
    """What all pages share, and the rest by the pages that use it. Modules of the console take single parts of it, as ports."""

    plan: Live[Plan]
    address: PublicAddress
    events: EventHub
    people: KnownPeople
    calls: CallServices
    decisions: DecisionServices
    servers: ServerServices
    load: LoadServices
