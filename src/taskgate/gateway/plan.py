"""One configuration, compiled: what the gateway works from until the next reload puts another plan in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from taskgate.core.catalog.annotate import AnnotationMode
from taskgate.core.governance.pipeline import Gates, open_gates
from taskgate.core.scoping.registry import Registry
from taskgate.core.scoping.scope import ScopePolicy

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    request_bytes: int = 4 * MIB
    result_bytes: int = 16 * MIB
    tools_per_upstream: int = 1000
    list_pages: int = 100
    list_timeout_s: float = 30.0
    sessions: int = 10_000
    session_idle_s: float = 1800.0
    open_tasks_per_caller: int = 200
    pending_approvals_per_caller: int = 20


@dataclass(frozen=True, slots=True)
class CallSettings:
    """How long a plain call may take where nothing else is said."""

    timeout_s: float = 600.0
    annotation_mode: AnnotationMode = AnnotationMode.AUTO
    seed_task_codes: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    revision: int
    registry: Registry
    scopes: Mapping[str, ScopePolicy]
    default_scope: str = "default"
    gates: Gates = field(default_factory=open_gates)
    limits: Limits = Limits()
    calls: CallSettings = CallSettings()

    def timeout_of(self, server: str) -> float:
        record = self.registry.records.get(server)
        asked = record.budgets.tool_timeout_ms if record is not None else None
        return asked / 1000 if asked else self.calls.timeout_s
