"""The parts of the gateway that script runs use."""

from __future__ import annotations

import msgspec

from taskgate.gateway.calls.durable_calls import DurableCalls
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.governance.known_people import KnownPeople
from taskgate.gateway.scripts.fair_turns import StepTurns
from taskgate.gateway.scripts.script_sources import ScriptSources
from taskgate.gateway.tasks.engine import TaskEngine
from taskgate.gateway.tasks.sends import Recheck
from taskgate.ports.script_interpreter import ScriptInterpreter
from taskgate.shown_fields import repr_without


class ScriptParts(msgspec.Struct, frozen=True, kw_only=True):
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

    __repr__ = repr_without("key")
