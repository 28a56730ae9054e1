"""One run of a script: step, store, call, wait, next step.

A step is stored before its calls are sent: the snapshot and the tasks of its calls are one transaction. The outcome of a call is in
the record of its task before the script receives it, and the step that received it is stored before its next calls are sent. So
after a crash the newest snapshot is loaded, and the calls that it waits for are looked up: the script receives the same outcomes,
and no call is made twice. Between steps the script occupies no worker.

A step that makes no call, because the script still waits for others of `gather`, is not stored: nothing outside depends on it. Its
outcomes are read again after a crash. So the number of writes does not depend on which outcomes arrive together.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.scripts.code_digest import script_digest
from taskgate.core.scripts.given_script import NO_INPUTS, read_given
from taskgate.core.scripts.record import OpenCall, ReceivedOutcomes, ScriptRecord
from taskgate.core.scripts.snapshot_seal import SnapshotPlace, bind_record, is_bound, seal, split_record, verify
from taskgate.core.tasks import endings
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import Noted, TransitionEvent
from taskgate.gateway.governance.pre_send_recheck import script_withdrawn
from taskgate.gateway.requests.strict_arguments import arguments_digest, read_ahead
from taskgate.gateway.scripts.call_outcomes import decode_outcome, outcome_of
from taskgate.gateway.scripts.cancel_call import cancel_call
from taskgate.gateway.scripts.earlier_calls import EarlierCalls, earlier_calls
from taskgate.gateway.scripts.fair_turns import limited_caller
from taskgate.gateway.scripts.other_interpreters import ScriptOver, leave_to_another
from taskgate.gateway.scripts.passed_results import PassedResults
from taskgate.gateway.scripts.script_calls import PreparedStepCall, ScriptCalls
from taskgate.gateway.scripts.script_chain import ChainPart, calls_of, kept_chain
from taskgate.gateway.scripts.script_parts import ScriptParts
from taskgate.gateway.scripts.script_questions import ScriptQuestions
from taskgate.gateway.scripts.script_result import (
    calls_by_execution,
    executed_by,
    failed,
    finished,
    how_to_resume,
    resume_data,
)
from taskgate.gateway.scripts.script_tools import script_program
from taskgate.gateway.tasks.sends import NotSent, TaskSends
from taskgate.ports.script_interpreter import (
    CallOutcome,
    Failed,
    FailureReason,
    Finished,
    Raised,
    Returned,
    ScriptLimits,
    ScriptProgram,
    Step,
    StepFacts,
    StepOutput,
    Suspended,
)
from taskgate.ports.store_answers import Change, IdTaken
from taskgate.store.operations.scripts import FindScript, ScriptStep, Stepped, StoredScript
from taskgate.store.operations.tasks import TakeTask
from taskgate.telemetry.logs import log

T = TypeVar("T")
SEAL_BYTES: Final = 32
SHARED_POLL_S: Final = 5.0
"""How often a script checks whether calls at other gateways have ended, in case an announcement was lost."""
_ACTIVE: Final = (TaskState.QUEUED, TaskState.RUNNING)
"""States of a call that waits for no person."""
_NOT_STORED: Final = Raised("overloaded", "The call was refused before it was stored. It was not executed.", "no")


class _Pending(msgspec.Struct, frozen=True):
    """What is known of the calls that a script waits for."""

    outcomes: dict[int, CallOutcome]
    active: bool
    """Whether a call is being executed."""
    held: tuple[str, ...]
    """Calls that wait for approval."""
    wait_s: float | None
    """After how many seconds to check the calls again at the latest."""


class ScriptRun:
    def __init__(self, parts: ScriptParts, task: Task) -> None:
        self.wake = asyncio.Event()
        """Set when something changed that the script may wait for."""
        self._parts = parts
        self._task = task
        self._records = parts.tasks.records
        self._record = ScriptRecord()
        self._snapshot = b""
        self._spent_s = 0.0
        self._received: tuple[int, ...] = ()
        """Calls whose outcomes the script has received since its newest stored step."""
        self._refused: dict[int, CallOutcome] = {}
        """Calls that the store refused when their step was stored."""
        self._held: tuple[str, ...] = ()
        """The calls that wait for approval, as last reported."""
        self._changed: dict[str, Task] = {}
        """Tasks of calls as they were last announced. Others are read from the store."""
        self._questions = ScriptQuestions(parts.tasks.questions, task, self.wake.set)
        self._earlier = EarlierCalls(self._records, (), ())
        self._digest = ""
        """Digest of the source and the inputs."""
        self._passed = PassedResults(parts, task, "")

    def call_changed(self, task: Task) -> None:
        """Note that a call changed, and wake the script if the change matters to it."""
        before = self._changed.get(task.id)
        if before is not None and before.state.is_terminal:
            return
        self._changed[task.id] = task
        if before is None or _matters(before.state) != _matters(task.state):
            self.wake.set()

    async def run(self) -> None:
        """Run the script to its end, from its newest step. Returns early if it has ended or belongs to another gateway."""
        try:
            await self._run()
        except ScriptOver:
            pass
        finally:
            self._questions.close()

    async def _run(self) -> None:
        if self._task.state in (TaskState.QUEUED, TaskState.APPROVED):
            await self._begin()
        stored = await self._read(lambda: self._records.store.ask(FindScript(self._task.id)))
        if stored is not None:
            await self._load(stored)
        await self._check_interpreter(stored)
        given = read_given(self._task.arguments)
        self._digest = script_digest(given.code, await _inputs_digest(given.inputs_json))
        self._passed = PassedResults(self._parts, self._task, given.code)
        try:
            self._earlier = await self._read(lambda: earlier_calls(self._parts, self._task, self._record.reused))
        except CallerError as problem:
            if stored is not None:
                await self._end_unresumable(f"A script that it resumes cannot be read: {problem.message}")
            await self._end(endings.by_error(self._task, problem))
        if stored is None:
            program = await script_program(self._parts.lookup, self._task, given)
            await self._handle(await self._step(partial(self._start, program)), {})
        while True:
            outcomes = await self._outcomes()
            step = await self._step(partial(self._resume, outcomes))
            await self._handle(step, outcomes)

    async def _begin(self) -> None:
        """Store that the script runs, after the last check of rules and approval. Raises ScriptOver."""
        task, store = self._task, self._records.store
        if task.owner != store.ownership.owner:
            taken = await store.do(TakeTask(task.id))
            if taken is None:
                raise ScriptOver
            task = taken
        intent = TaskSends(self._records, self._parts.recheck, task, None)
        try:
            await intent.sends_again()
        except NotSent:
            raise ScriptOver from None
        self._task = intent.task

    async def _load(self, stored: StoredScript) -> None:
        """Continue from a stored step. The script ends unless snapshot and record are as they were stored."""
        sealed, bound = stored.snapshot[:SEAL_BYTES], stored.snapshot[SEAL_BYTES:]
        place = SnapshotPlace(self._task.id, stored.record.step, stored.record.interpreter)
        if not verify(self._parts.key, bound, place, sealed):
            await self._end_unresumable("Its snapshot was changed in the store.")
        snapshot, digest = split_record(bound)
        if not is_bound(msgspec.json.encode(stored.record), digest):
            await self._end_unresumable("Its record was changed in the store.")
        self._record, self._snapshot = stored.record, snapshot
        self._spent_s = stored.record.spent_ms / 1000

    async def _check_interpreter(self, stored: StoredScript | None) -> None:
        """Unless this interpreter can load the snapshot, leave the script to a live gateway that can, or end it."""
        version = self._parts.interpreter.version
        if stored is not None and stored.record.interpreter != version:
            needed = stored.record.interpreter
            await leave_to_another(self._records, self._task, lambda other: other == needed)
            await self._end_unresumable(
                f"Its snapshot needs version {needed} of the interpreter. This gateway has {version or 'none'}, and no other "
                "running gateway has that version."
            )
        if not version:
            await leave_to_another(self._records, self._task, bool)
            await self._end_unresumable("No running gateway has an interpreter of scripts.")

    async def _end_unresumable(self, why: str) -> None:
        read_calls = partial(kept_chain, self._records.store, self._task)
        for call in (await self._read(read_calls))[-1].calls:
            await cancel_call(self._parts, call.task.id, "the script cannot be continued")
        calls = await self._read(read_calls)
        text = f"The script cannot be continued. {why} Its calls are listed in the data of this error. "
        data = {**resume_data(self._task.id), "calls": calls_by_execution(calls, self._record)}
        text += how_to_resume(self._task.id)
        fault = GatewayFault("script_not_resumable", text, executed=executed_by(calls), data=data)
        await self._end(endings.by_error(self._task, fault))

    async def _stop_if_withdrawn(self) -> None:
        """End the script if its caller may no longer run scripts: before the next call, and as soon as it waits."""
        task = self._task
        why = script_withdrawn(self._parts.lookup.plan.value, task)
        if why is None:
            return
        await self._cancel_pending("the script was stopped")
        calls = await self._calls()
        text = (
            why.reason
            + " The script was stopped, and its calls are listed in the data of this error. When this has changed: "
        )
        data = {**resume_data(task.id), "calls": calls_by_execution(calls, self._record)}
        fault = CallerError(why.error_type, text + how_to_resume(task.id), executed=executed_by(calls), data=data)
        await self._end(endings.by_error(task, fault))

    # Steps.

    @property
    def _limits(self) -> ScriptLimits:
        limits = self._parts.lookup.plan.value.limits
        return ScriptLimits(
            memory_bytes=limits.script_memory_bytes,
            step_seconds=limits.script_step_time,
            wall_seconds=limits.script_step_wall,
            output_bytes=limits.script_output_bytes,
            parallel_calls=limits.script_parallel_calls,
        )

    async def _step(self, run: Callable[[], Awaitable[Step]]) -> Step:
        """Run a step. One whose worker ended is run once more: nothing outside has happened."""
        step = await self._in_turn(run)
        if isinstance(step, Failed) and step.reason is FailureReason.WORKER:
            log.warning("the worker of a script ended; its step is run again", task=self._task.id, why=step.message)
            step = await self._in_turn(run)
        return step

    async def _in_turn(self, run: Callable[[], Awaitable[Step]]) -> Step:
        """Run a step when it is the caller's turn. Waiting for it costs no execution time."""
        caller, turns = limited_caller(self._task), self._parts.turns
        async with turns.turn(caller):
            began = clock.monotonic()
            step = await run()
            took_s = clock.monotonic() - began
            # The CPU time of a worker that was lost is not known.
            turns.charge(caller, step.output.cpu_seconds or took_s)
        self._spent_s += took_s
        return step

    async def _start(self, program: ScriptProgram) -> Step:
        return await self._parts.interpreter.start(program, self._limits, _facts())

    async def _resume(self, outcomes: Mapping[int, CallOutcome]) -> Step:
        return await self._parts.interpreter.resume(self._snapshot, outcomes, self._limits, _facts())

    async def _handle(self, step: Step, outcomes: Mapping[int, CallOutcome]) -> None:
        self._record = _with_output(self._record, step.output, self._parts.lookup.plan.value.limits.script_output_bytes)
        self._report(step.output)
        self._received += tuple(outcomes)
        for call in self._record.pending:
            if call.number in outcomes:
                self._changed.pop(call.child, None)
        match step:
            case Suspended():
                await self._suspend(step, outcomes)
            case Finished():
                value = await self._value(step)
                await self._cancel_pending("the script has ended")
                await self._end(finished(value, self._record, await self._calls()))
            case Failed():
                await self._fail(step)

    async def _value(self, step: Finished) -> bytes:
        """The value of the script, with the results that it returns without having read them."""
        if not step.references:
            return step.value
        try:
            value = await self._passed.resolved(wire.parse_strictly(step.value), step.references)
        except CallerError as problem:
            reason = FailureReason.LIMIT if problem.error_type == "result_too_large" else FailureReason.SCRIPT
            await self._fail(
                Failed(
                    reason=reason, error_type=problem.error_type, message=problem.message, line=0, output=StepOutput()
                )
            )
            raise
        return await asyncio.to_thread(wire.encode, value)

    async def _suspend(self, step: Suspended, outcomes: Mapping[int, CallOutcome]) -> None:
        """Store the step with its calls, then start them. One without new calls is stored with the next one."""
        record, limits = self._record, self._parts.lookup.plan.value.limits
        if record.calls + len(step.calls) > limits.script_calls:
            text = f"a script may make {limits.script_calls} calls (limits.script_calls)"
            await self._fail(
                Failed(
                    reason=FailureReason.LIMIT,
                    error_type="too_many_calls",
                    message=text,
                    line=_line_of(step),
                    output=StepOutput(),
                )
            )
        waiting = frozenset(step.pending)
        before = tuple(call for call in record.pending if call.number in waiting and call.number not in outcomes)
        if not step.calls and not any(call.question for call in record.pending if call.number in outcomes):
            self._record, self._snapshot = replace(record, pending=before), step.snapshot
            return
        await self._stop_if_withdrawn()
        prepared = await ScriptCalls(
            parts=self._parts, script=self._task, digest=self._digest, earlier=self._earlier, passed=self._passed
        ).prepare(step.calls)
        record = replace(
            record,
            step=record.step + 1,
            interpreter=self._parts.interpreter.version,
            calls=record.calls + len(step.calls),
            spent_ms=int(self._spent_s * 1000),
            pending=(*before, *(call.open for call in prepared)),
            reused=(*record.reused, *(call.reused for call in prepared if call.reused)),
        )
        record = record.with_refused([call.refused for call in prepared if call.refused is not None])
        place = SnapshotPlace(self._task.id, record.step, record.interpreter)
        bound = bind_record(step.snapshot, msgspec.json.encode(record))
        sealed = seal(self._parts.key, bound, place) + bound
        children = [call.child for call in prepared if call.child is not None]
        stepped = await self._records.step_script(self._task.id, ScriptStep(record, sealed, self._received), children)
        if not isinstance(stepped, Stepped):
            raise ScriptOver
        self._record, self._snapshot, self._received = record, step.snapshot, ()
        accepted = iter(stepped.accepted)
        for call in prepared:
            if call.child is not None:
                await self._start_call(call, next(accepted))

    async def _start_call(self, call: PreparedStepCall, accepted: object) -> None:
        assert call.child is not None and call.request is not None
        task: Task | None = None
        if isinstance(accepted, Change):
            task = accepted.task
        elif isinstance(accepted, IdTaken):
            # The write was repeated because its reply was lost; the first one has stored the call.
            task = await self._records.current(call.child.draft.id)
        if task is not None:
            self._parts.tasks.start_script_call(self._task, task, call.child.approval, call.request)
            return
        text = "Too many calls wait for approvals (limits.pending_approvals_per_caller). It was not executed."
        self._refused[call.open.number] = Raised("overloaded", text, "no")

    def _report(self, output: StepOutput) -> None:
        """Send what the step printed, and its progress, to callers that follow the script."""
        last = output.progress[-1] if output.progress else None
        lines = output.printed.strip().splitlines()
        message = (last.text if last is not None and last.text else None) or (lines[-1] if lines else None)
        if message is None and last is None:
            return
        self._note(message)

    def _report_held(self, held: tuple[str, ...]) -> None:
        """Report which calls wait for approval, when that changes: otherwise a caller does not know why the script does not
        continue.
        """
        if held != self._held:
            self._held = held
            self._note(f"Waiting for approval: {', '.join(held)}" if held else "Running")

    def _note(self, message: str | None) -> None:
        record = self._record
        done = record.progress if record.progress is not None else float(record.step + 1)
        noted = Noted(message[:500] if message is not None else None, done, record.progress_total)
        self._records.note(self._task.id, self._task.principal, noted)

    # Waiting.

    async def _outcomes(self) -> dict[int, CallOutcome]:
        """Wait until at least one call has an outcome. Waiting for people and sleeping costs no execution time."""
        budget_s = self._parts.lookup.plan.value.limits.script_time
        while True:
            self.wake.clear()
            await self._stop_if_withdrawn()
            pending = await self._read_pending()
            self._report_held(pending.held)
            if pending.outcomes:
                return pending.outcomes
            wait_s = pending.wait_s
            if pending.active:
                left_s = budget_s - self._spent_s
                if left_s <= 0:
                    text = f"a script may run for {budget_s:g} s (limits.script_time)"
                    await self._fail(
                        Failed(
                            reason=FailureReason.LIMIT, error_type="too_long", message=text, line=0, output=StepOutput()
                        )
                    )
                wait_s = left_s if wait_s is None else min(wait_s, left_s)
            began = clock.monotonic()
            try:
                async with asyncio.timeout(wait_s):
                    await self.wake.wait()
            except TimeoutError:
                # An announcement may have been lost if the calls run at other gateways.
                self._changed.clear()
            if pending.active:
                self._spent_s += clock.monotonic() - began

    async def _read_pending(self) -> _Pending:
        outcomes: dict[int, CallOutcome] = {}
        held: list[str] = []
        active, wait_s = False, None if self._records.store.shared is None else SHARED_POLL_S
        for call in self._record.pending:
            outcome: CallOutcome | None = None
            if call.settled is not None:
                outcome = decode_outcome(call.settled)
            elif call.number in self._refused:
                outcome = self._refused[call.number]
            elif call.child:
                task = self._changed.get(call.child) or await self._records.current(call.child)
                outcome = await self._child_outcome(call, task)
                if task is not None and task.state is TaskState.AWAITING_APPROVAL:
                    held.append(f"{task.wire_name} (line {call.line})")
                active = active or (task is not None and task.state in _ACTIVE)
            elif call.question:
                outcome = self._questions.outcome(call)
            else:
                left_s = self._sleeps_s(call)
                outcome = Returned(b"null") if left_s <= 0 else None
                wait_s = left_s if wait_s is None else min(wait_s, left_s)
            if outcome is not None:
                outcomes[call.number] = outcome
        return _Pending(outcomes, active, tuple(held), wait_s)

    async def _child_outcome(self, call: OpenCall, task: Task | None) -> CallOutcome | None:
        if task is None:
            return _NOT_STORED
        if not task.state.is_terminal:
            return None
        body = await self._read(partial(self._records.result_bytes, task))
        return await self._passed.outcome(task, call.offset, outcome_of(task, body))

    def _sleeps_s(self, call: OpenCall) -> float:
        assert call.due_ms is not None
        return (call.due_ms - self._records.store.now_ms()) / 1000

    # The end.

    async def _fail(self, problem: Failed) -> None:
        await self._cancel_pending("the script failed")
        await self._end(failed(problem, self._record, await self._calls(), self._received))

    async def _end(self, event: TransitionEvent) -> None:
        received = ReceivedOutcomes(self._record.step + 1, self._received) if self._received else None
        await self._records.conclude(self._task.id, event, received=received)
        raise ScriptOver

    async def _cancel_pending(self, why: str) -> None:
        for child in self._record.pending_children:
            await cancel_call(self._parts, child, why)

    async def _calls(self) -> tuple[ChainPart, ...]:
        """The calls of the scripts that this one resumes, and its own at the end."""
        own = await self._read(partial(calls_of, self._records.store, self._task.id))
        return *self._earlier.chain, ChainPart(self._task.id, own)

    async def _read(self, read: Callable[[], Awaitable[T]]) -> T:
        return await self._records.retry_while_unavailable(read)


async def _inputs_digest(inputs: bytes) -> str:
    """The digest of the inputs of a script, equal for equal values; empty without inputs."""
    if inputs == NO_INPUTS:
        return ""
    await read_ahead(inputs)
    return arguments_digest(inputs)


def _matters(state: TaskState) -> tuple[bool, bool, bool]:
    """The part of a call's state that matters to its script: whether it has ended, is active, or is held."""
    return state.is_terminal, state in _ACTIVE, state is TaskState.AWAITING_APPROVAL


def _with_output(record: ScriptRecord, output: StepOutput, maximum: int) -> ScriptRecord:
    """Add what a step printed, up to `maximum` characters."""
    remaining = max(0, maximum - len(record.printed))
    kept, dropped = output.printed[:remaining], max(0, len(output.printed) - remaining)
    last = output.progress[-1] if output.progress else None
    return replace(
        record,
        printed=record.printed + kept,
        dropped=record.dropped + dropped + int(output.printed_cut),
        progress=last.done if last is not None else record.progress,
        progress_total=last.total if last is not None else record.progress_total,
    )


def _facts() -> StepFacts:
    return StepFacts(clock.wall(), secrets.token_bytes(32))


def _line_of(step: Suspended) -> int:
    return step.calls[0].line if step.calls else 0
