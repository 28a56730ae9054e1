"""Everything that a durable store offers, in one protocol, for the composition root. Use cases depend on the narrower protocols."""

from __future__ import annotations

from typing import Protocol

from taskgate.ports.approval_store import ApprovalStore
from taskgate.ports.audit_log import AuditLog
from taskgate.ports.catalog_store import CatalogStore
from taskgate.ports.event_outbox import EventOutbox
from taskgate.ports.history import HistoryStore
from taskgate.ports.identity_store import IdentityStore
from taskgate.ports.personal_data_store import PersonalDataStore
from taskgate.ports.restored_store import RestoredStore
from taskgate.ports.scope_store import ScopeStore
from taskgate.ports.script_store import ScriptStore
from taskgate.ports.server_store import ServerStore
from taskgate.ports.shared_questions import QuestionStore
from taskgate.ports.task_store import TaskStore
from taskgate.ports.usage_store import UsageStore


class Store(
    TaskStore,
    ScriptStore,
    ApprovalStore,
    EventOutbox,
    AuditLog,
    CatalogStore,
    ScopeStore,
    UsageStore,
    HistoryStore,
    IdentityStore,
    PersonalDataStore,
    RestoredStore,
    Protocol,
):
    """One database with all its views."""

    @property
    def shared_servers(self) -> ServerStore | None:
        """Servers that callers added; None where one gateway has the store to itself and keeps them in memory."""
        ...

    @property
    def shared_questions(self) -> QuestionStore | None:
        """Questions that can be answered at every gateway; None where one gateway has the store to itself."""
        ...
