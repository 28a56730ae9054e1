"""What the process lifecycle uses: start, recovery, housekeeping, drain and close.

The order of the steps matters and is defined where the parts are made (`wiring`). A step that closes something comes after every
step whose work may still need it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from taskgate.gateway.catalog.catalogs import Catalogs
from taskgate.gateway.governance.history_upkeep import HistoryUpkeep
from taskgate.gateway.governance.journal import Journal
from taskgate.gateway.governance.known_people import KnownPeople
from taskgate.gateway.methods.session_ends import SessionEnds
from taskgate.gateway.methods.shared_sessions import SharedSessions
from taskgate.gateway.methods.subscriptions import Subscriptions
from taskgate.gateway.other_gateways import OtherGateways
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.public_address import PublicAddress
from taskgate.gateway.requests.session_table import SessionTable
from taskgate.gateway.status import GatewayStatus
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.telemetry.logs import log

Step = Callable[[], Awaitable[object]]


class GatewayLifecycle(msgspec.Struct, eq=False, kw_only=True):
    plan: Live[Plan]
    status: GatewayStatus
    address: PublicAddress
    tasks: TaskEngine
    catalogs: Catalogs
    sessions: SessionTable
    session_ends: SessionEnds
    shared_sessions: SharedSessions | None
    """None when no other gateway can continue a session of this one."""
    subscriptions: Subscriptions
    others: OtherGateways
    people: KnownPeople
    journal: Journal
    upkeep: HistoryUpkeep
    start_steps: tuple[Step, ...]
    """Load what the store holds, and start to fetch the servers' lists."""
    refresh_steps: tuple[Step, ...]
    """Run every second."""
    reap_steps: tuple[Step, ...]
    """Release what is idle. Run twice a minute."""
    close_steps: tuple[Step, ...]
    close_tracing: Step
    """Run after the servers are closed: the duration of their sessions is recorded then."""

    async def start(self) -> None:
        """Prepare for callers. Call it before the gateway listens."""
        for step in self.start_steps:
            await step()

    async def recover(self) -> None:
        """Take over the tasks of gateways that have died. Call it before the gateway listens.

        On a store restored from a backup, log the tokens that may have been revoked after the backup and are valid again.
        """
        restored = self.tasks.store.state.restore.is_restored
        await self.tasks.recovery.take_over()
        await self.journal.add_up()
        if not restored:
            return
        await self.people.load()
        tokens = [token.id for token in self.plan.value.governing.tokens if not self.people.is_revoked(token.sha256)]
        log.warning(
            "tokens revoked after the backup are valid again: review them and revoke those again (`taskgate tokens revoke NAME`)",
            tokens=tokens,
        )

    async def refresh(self) -> None:
        """Do what is due every second."""
        for step in self.refresh_steps:
            await step()

    async def reap(self) -> None:
        """End idle sessions, feeds and connections."""
        for step in self.reap_steps:
            await step()

    def drain(self) -> None:
        """Accept no new work. Requests in progress continue; long-lived streams end with their final result."""
        self.tasks.drain()
        log.info("draining", sessions=len(self.sessions))
        self.subscriptions.end_all()
        self.session_ends.end_streams()

    async def close(self) -> None:
        self.status.stop()
        self.subscriptions.end_all()
        self.journal.flush(last=True)
        for step in self.close_steps:
            await step()
        self.session_ends.end_streams()
        await self.journal.close()
