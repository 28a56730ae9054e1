"""A call in flight becomes a task when its caller has waited long enough.

Nothing runs beside an ordinary call but a timer. When it fires, the call is written down as already sent, the caller gets its reply
by the ladder, and the same coroutine that carried the call brings its result to the store instead of to the caller.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from typing import Any

import structlog

from taskgate.core import wire
from taskgate.core.delivery import Delivery, Form, promoted_text
from taskgate.core.errors import Executed, TaskgateError, UpstreamError
from taskgate.core.generations import Generation
from taskgate.core.generations.stateless_2026 import complete
from taskgate.core.questions import Answer, Question
from taskgate.core.tasks import stateful_face, stateless_face
from taskgate.core.tasks.birth import AlreadySent
from taskgate.core.tasks.happening import ErrorCame
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.request import Request
from taskgate.gateway.tasks.desk import NewCall, TaskDesk
from taskgate.gateway.tasks.endings import lose_contact, own_error, progress_note, record_reply
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.runs import Conversation, Runs
from taskgate.ports.upstream import ErrorReply, RelayedError, Result

log = structlog.get_logger("taskgate")


class Promotion:
    """The ladder under one plain call."""

    def __init__(
        self,
        desk: TaskDesk,
        runs: Runs,
        questions: TaskQuestions,
        request: Request,
        call: Callable[[], NewCall],
        rung: Delivery,
    ) -> None:
        self.task: Task | None = None
        self.in_line = False
        """Whether the call still waits for a slot of its server: then nothing was sent yet."""
        self._desk = desk
        self._runs = runs
        self._questions = questions
        self._request = request
        self._call = call
        self._rung = rung
        self._carrier = asyncio.current_task()
        self._started = time.monotonic()
        self._sent_ms = desk.store.now_ms()
        self._work: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        if self._rung.wait_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._rung.wait_s, self._due)

    def _due(self) -> None:
        self._work = asyncio.get_running_loop().create_task(self._promote())

    async def _promote(self) -> None:
        """Make it durable, then answer. If it cannot be made durable the caller simply goes on waiting."""
        request, call = self._request, self._call()
        waits = self.in_line
        sent = AlreadySent(hashlib.sha256(wire.join(call.params)).hexdigest(), call.server, self._sent_ms)
        try:
            task, _ = await self._desk.accept(request, call, sent=None if waits else sent)
        except TaskgateError as problem:
            log.warning("call not promoted", tool=call.wire_name, why=problem.message)
            return
        self.task = task
        self._runs.remember(task.id, Conversation(request.link_key, request.face, request.capabilities))
        if self._carrier is not None and not waits:
            # Whoever carried it goes on carrying it.
            self._runs.adopt(task, self._carrier)
        request.stand_in = _StandIn(self._desk, self._questions, self._runs, task.id)
        self._questions.adopt(task, request)
        await request.answer_early(handed_over(request, task, self._desk, self._rung, time.monotonic() - self._started))
        if waits:
            # Nothing was sent: the run stands in line by itself, and the one who waited so far is let go.
            self._runs.start(task)
            if self._carrier is not None:
                self._carrier.cancel()

    async def through(self) -> None:
        """The call has its slot and is about to be sent. If it is just becoming a task, that is waited for first."""
        if self._work is not None:
            await asyncio.shield(self._work)
        self.in_line = False

    async def over(self) -> Task | None:
        """The call has its answer. The task it became meanwhile, or None if the caller still waits for a reply."""
        if self._timer is not None:
            self._timer.cancel()
        if self._work is not None:
            await asyncio.shield(self._work)
        return self.task

    async def finish(self, task: Task, result: bytes) -> None:
        await record_reply(self._desk, task.id, Result(result))

    async def fail(self, task: Task, problem: Exception) -> None:
        if isinstance(problem, RelayedError):
            await record_reply(self._desk, task.id, ErrorReply(problem.raw, problem.code))
        elif isinstance(problem, UpstreamError) and problem.executed is Executed.MAYBE:
            await lose_contact(self._desk, task, problem)
        elif isinstance(problem, TaskgateError):
            await self._desk.advance(task.id, ErrorCame(own_error(task, problem), problem.message, problem.executed))


class _StandIn:
    """Takes the caller's place once it has its reply."""

    def __init__(self, desk: TaskDesk, questions: TaskQuestions, runs: Runs, task_id: str) -> None:
        self._desk = desk
        self._questions = questions
        self._runs = runs
        self._task_id = task_id

    def heard(self, method: str, params: Raw | None) -> None:
        noted = progress_note(method, params)
        if noted is not None:
            self._desk.store.note(self._task_id, noted)
            self._runs.on_progress(self._task_id, noted)

    async def ask(self, question: Question) -> Answer:
        return await self._questions.ask(self._task_id, question)


def handed_over(request: Request, task: Task, desk: TaskDesk, rung: Delivery, waited_s: float) -> bytes:
    """What the caller gets instead of the result: a handle if it knows tasks, else a sentence."""
    if request.hand_over is not None:
        return request.hand_over(task, waited_s)
    if rung.form is Form.HANDLE:
        return wire.encode(task_handle(request, task, desk))
    for_people = task.state is TaskState.AWAITING_APPROVAL
    text = promoted_text(task.wire_name, task.id, round(waited_s, 1), helpers=True, for_people=for_people)
    result = wire.encode({"content": [{"type": "text", "text": text}], "isError": False})
    return complete(result) if request.generation is Generation.STATELESS else result


def task_handle(request: Request, task: Task, desk: TaskDesk) -> dict[str, Any]:
    poll = desk.poll_ms(task)
    if request.generation is Generation.STATELESS:
        return stateless_face.create_result(task, poll)
    return stateful_face.create_result(task, poll)
