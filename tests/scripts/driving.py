"""Run scripts on the real interpreter, step by step, with answers chosen by the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from taskgate.ports.script_interpreter import (
    CallOutcome,
    PendingCall,
    Returned,
    ScriptLimits,
    ScriptProgram,
    ScriptTool,
    Step,
    StepFacts,
    Suspended,
)
from taskgate.scripts.monty_interpreter import MontyInterpreter

FACTS = StepFacts(now=1_790_000_000.5, seed=bytes(32))
LIMITS = ScriptLimits(memory_bytes=32 * 1024 * 1024, step_seconds=5)
TOOLS = (ScriptTool("files", "read_file", "files__read_file"), ScriptTool("files", "write_file", "files__write_file"))


def interpreter(**settings: Any) -> MontyInterpreter:
    made = MontyInterpreter(**settings)
    assert made.availability().available, "pydantic-monty is part of the test environment: run make .venv/.installed"
    return made


def program(code: str, inputs: Any = None) -> ScriptProgram:
    return ScriptProgram(code, json.dumps(inputs or {}).encode(), TOOLS)


def returned(value: Any) -> Returned:
    return Returned(json.dumps(value).encode())


def arguments(call: PendingCall) -> tuple[list[Any], dict[str, Any]]:
    return json.loads(call.positional), json.loads(call.keywords)


async def start(run: MontyInterpreter, code: str, limits: ScriptLimits = LIMITS, inputs: Any = None) -> Step:
    return await run.start(program(code, inputs), limits, FACTS)


async def resume(
    run: MontyInterpreter, step: Step, outcomes: Mapping[int, CallOutcome], limits: ScriptLimits = LIMITS
) -> Step:
    assert isinstance(step, Suspended), step
    return await run.resume(step.snapshot, outcomes, limits, FACTS)


async def to_the_end(
    run: MontyInterpreter, code: str, answer: Callable[[PendingCall], CallOutcome], limits: ScriptLimits = LIMITS
) -> tuple[Step, list[PendingCall], str]:
    """Run a script to its end, one outcome at a time; returns the last step, every call and what was printed."""
    step = await start(run, code, limits)
    calls: dict[int, PendingCall] = {}
    printed = step.output.printed
    while isinstance(step, Suspended):
        calls |= {call.id: call for call in step.calls}
        oldest = step.pending[0]
        step = await resume(run, step, {oldest: answer(calls[oldest])}, limits)
        printed += step.output.printed
    return step, list(calls.values()), printed
