"""The parts that almost every other part uses: plan, store, metrics, event hub, sessions, journal of calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from taskgate.core.waterfall import Waterfall
from taskgate.gateway.events import EventHub
from taskgate.gateway.governance.history_upkeep import HistoryUpkeep
from taskgate.gateway.governance.journal import Journal
from taskgate.gateway.governance.known_people import KnownPeople
from taskgate.gateway.methods.session_ends import SessionEnds
from taskgate.gateway.methods.subscriptions import Subscriptions
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.public_address import PublicAddress
from taskgate.gateway.questions.separated import SeparatedServers
from taskgate.gateway.requests.budgets import Budgets
from taskgate.gateway.requests.open_conversations import OpenConversations
from taskgate.gateway.requests.request_state import RequestStateSigner
from taskgate.gateway.requests.session_table import SessionTable
from taskgate.gateway.scripts.script_sources import ScriptSources
from taskgate.gateway.tasks.conversation import Conversations
from taskgate.ports.script_interpreter import ScriptInterpreter
from taskgate.ports.store import SharedStore, Store
from taskgate.ports.upstream import Upstream
from taskgate.shown_fields import repr_without
from taskgate.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing


class Foundation(msgspec.Struct, eq=False):
    """Created first; passed to almost every other part."""

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
    journal: Journal
    upkeep: HistoryUpkeep
    people: KnownPeople
    separated: SeparatedServers
    session_rows: SharedStore | None
    """Rows that other gateways read; None if no other gateway can reach this one."""
    sessions_elsewhere: Live[frozenset[str]]
    interpreter: ScriptInterpreter
    script_sources: ScriptSources
    script_key: bytes
    """Authenticates the snapshots of scripts."""

    __repr__ = repr_without("script_key")

    def session_ends(self, conversations: Conversations) -> SessionEnds:
        return SessionEnds(
            self.sessions, self.subscriptions, conversations, self.upstreams, events=self.events, rows=self.session_rows
        )

    @property
    def home(self) -> str:
        """The name under which other gateways reach this one; empty if they cannot."""
        return self.session_rows.ownership.owner if self.session_rows is not None else ""


def foundation(
    address: PublicAddress,
    store: Store,
    metrics: Metrics,
    *,
    seal_key: bytes,
    tracing: Tracing | None,
    session_rows: SharedStore | None,
    interpreter: ScriptInterpreter,
) -> Foundation:
    """Create the foundation. `address` holds the initial plan."""
    live, events = address.plan, EventHub()
    people = KnownPeople(store, events)
    live.replace(people.merged(live.value))
    budgets = Budgets(live.value)
    metrics.show(*budgets.gauges())
    sessions = SessionTable(live)
    elsewhere: Live[frozenset[str]] = Live(frozenset())
    upstreams: Live[Mapping[str, Upstream]] = Live({})
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
        journal=Journal(store, metrics, events, live),
        upkeep=HistoryUpkeep(store, live, events),
        people=people,
        separated=SeparatedServers(store, upstreams),
        session_rows=session_rows,
        sessions_elsewhere=elsewhere,
        interpreter=interpreter,
        script_sources=ScriptSources(),
        script_key=seal_key,
    )
