"""Everything a durable store offers, in one protocol, for the composition root. Use cases ask for the narrower ones."""

from __future__ import annotations

from typing import Protocol

from taskgate.ports.approval_store import ApprovalStore
from taskgate.ports.audit_log import AuditLog
from taskgate.ports.catalog_store import CatalogStore
from taskgate.ports.event_outbox import EventOutbox
from taskgate.ports.scope_store import ScopeStore
from taskgate.ports.task_store import TaskStore


class Store(TaskStore, ApprovalStore, EventOutbox, AuditLog, CatalogStore, ScopeStore, Protocol):
    """One database, six views of it."""
