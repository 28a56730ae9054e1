"""The parts of the gateway that the own tools for scripts use."""

from __future__ import annotations

from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.governance.gate import CallGate
from taskgate.gateway.scripts.script_sources import ScriptSources
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ScriptToolParts:
    lookup: Lookup
    gate: CallGate
    tasks: TaskEngine
    sources: ScriptSources
