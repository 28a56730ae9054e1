"""The interpreter of scripts, if it is installed."""

from __future__ import annotations

from collections.abc import Mapping

from taskgate.ports.script_interpreter import (
    Availability,
    CallOutcome,
    Failed,
    FailureReason,
    ScriptInterpreter,
    ScriptLimits,
    ScriptProgram,
    Step,
    StepFacts,
    StepOutput,
)

_MISSING = "Scripts need the interpreter: pip install 'taskgate[scripts]'."


class NotInstalled:
    version = ""

    def availability(self) -> Availability:
        return Availability(False, _MISSING)

    async def start(self, program: ScriptProgram, limits: ScriptLimits, facts: StepFacts) -> Step:
        return Failed(FailureReason.INTERPRETER, "not_installed", _MISSING, 0, StepOutput())

    async def resume(
        self, snapshot: bytes, outcomes: Mapping[int, CallOutcome], limits: ScriptLimits, facts: StepFacts
    ) -> Step:
        return Failed(FailureReason.INTERPRETER, "not_installed", _MISSING, 0, StepOutput())

    async def aclose(self) -> None:
        pass


def interpreter() -> ScriptInterpreter:
    return NotInstalled()
