"""The parts of the gateway that the own tools for scripts use."""

from __future__ import annotations

import msgspec

from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.governance.gate import CallGate
from taskgate.gateway.scripts.script_sources import ScriptSources
from taskgate.gateway.tasks.engine import TaskEngine


class ScriptToolParts(msgspec.Struct, frozen=True):
    lookup: Lookup
    gate: CallGate
    tasks: TaskEngine
    sources: ScriptSources
