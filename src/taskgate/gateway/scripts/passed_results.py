"""Results that a script passes on without loading them: handed over by reference, and put in place when they are used.

A reference is resolved before a call is checked, so rules, validation, approvals and digests apply to the bytes that are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.errors import CallerError, Executed
from taskgate.core.scripts.result_reference import REFERENCE_BYTES, referenced_call, result_reference
from taskgate.core.tasks.task import Task
from taskgate.gateway.scripts.call_outcomes import executed_value, outcome_of
from taskgate.gateway.scripts.fair_turns import limited_caller
from taskgate.gateway.scripts.script_parts import ScriptParts
from taskgate.ports.script_interpreter import CallOutcome, PlacedReference, Raised, Referenced, Returned
from taskgate.turns import LARGE_BYTES

MAX_LOADED: Final = 4 * 1024 * 1024
"""Maximum bytes of a result that the script itself reads."""
MAX_PASSED: Final = 16 * 1024 * 1024
"""Maximum bytes of all results that one call passes on, or that the script returns."""


class PassedResults:
    """The references of one script."""

    def __init__(self, parts: ScriptParts, script: Task, code: str) -> None:
        self._records = parts.tasks.records
        self._sources = parts.sources
        self._key = parts.key
        self._script = script.id
        self._caller = limited_caller(script)
        self._code = code
        self._calls: frozenset[int] | None = None

    async def outcome(self, task: Task, offset: int, outcome: CallOutcome) -> CallOutcome:
        """The outcome of a call as the script gets it. `offset`: where the call begins in the source."""
        if not isinstance(outcome, Returned) or len(outcome.value) <= REFERENCE_BYTES:
            return outcome
        if await self._is_passed_on(offset):
            return Referenced(result_reference(self._key, self._script, task.id))
        if len(outcome.value) > MAX_LOADED:
            text = (
                f"The result of {task.wire_name} has {len(outcome.value):,} bytes, and a script can read {MAX_LOADED:,}. "
                "Pass it on as an argument of another call, or request a part of it."
            )
            return Raised("result_too_large", text, executed_value(task))
        return outcome

    async def _is_passed_on(self, offset: int) -> bool:
        if self._calls is None:
            self._calls = await self._sources.passed_on(self._code, self._caller)
        return offset in self._calls

    async def resolved(self, value: Any, references: Sequence[PlacedReference]) -> Any:
        """The value with every result in its place. Raises CallerError."""
        known: dict[str, bytes] = {}
        total = 0
        for placed in references:
            if placed.reference not in known:
                known[placed.reference] = await self._result(placed.reference)
            total += len(known[placed.reference])
            if total > MAX_PASSED:
                text = f"The results that are passed on have more than {MAX_PASSED:,} bytes. The call was not executed."
                raise CallerError("result_too_large", text, executed=Executed.NO)
            value = _put(value, placed.path, await _parsed(known[placed.reference]))
        return value

    async def _result(self, reference: str) -> bytes:
        call = referenced_call(self._key, self._script, reference)
        if call is None:
            text = "An argument is not a result of this script. The call was not executed."
            raise CallerError("invalid_params", text, executed=Executed.NO)
        task = await self._records.current(call)
        outcome = None if task is None else outcome_of(task, await self._records.result_bytes(task))
        if not isinstance(outcome, Returned):
            text = "A result that is passed on is no longer kept. The call was not executed."
            raise CallerError("result_expired", text, executed=Executed.NO)
        return outcome.value


async def _parsed(result: bytes) -> Any:
    if len(result) < LARGE_BYTES:
        return wire.parse_strictly(result)
    return await asyncio.to_thread(wire.parse_strictly, result)


def _put(value: Any, path: Sequence[str | int], result: Any) -> Any:
    """Put a result at a path inside `value`, which is changed in place."""
    if not path:
        return result
    inner = value
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = result
    return value
