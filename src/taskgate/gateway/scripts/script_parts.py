"""The parts of the gateway that script runs use."""

from __future__ import annotations

from taskgate.gateway.calls.durable_calls import DurableCalls
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.governance.known_people import KnownPeople
from taskgate.gateway.scripts.fair_turns import StepTurns
from taskgate.gateway.scripts.script_sources import ScriptSources
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.sends import Recheck
from taskgate.lazy_dataclass import dataclass
from taskgate.ports.script_interpreter import ScriptInterpreter


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptParts:
    lookup: Lookup
    durable: DurableCalls
    tasks: TaskEngine
    interpreter: ScriptInterpreter
    recheck: Recheck
    people: KnownPeople
    sources: ScriptSources
    turns: StepTurns
    key: bytes
    """Authenticates snapshots."""
