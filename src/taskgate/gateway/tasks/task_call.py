"""One call of a task to its server: its rounds, the questions between them, and notifications meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.generations.generation import Generation
from taskgate.core.questions.question import accepted
from taskgate.core.tasks.task import Task
from taskgate.core.waterfall import Waterfall
from taskgate.core.wire import Members, Raw
from taskgate.gateway.events import ElicitationCompleted, EventHub, TaskLogged
from taskgate.gateway.plan import Live
from taskgate.gateway.questions.url_elicitations import COMPLETE, URL_REQUIRED, url_questions
from taskgate.gateway.relay.rounds import (
    in_rounds,
    kept_state,
    next_params,
    partial_failure,
    questions_of,
    send_round,
    stateless_answer,
)
from taskgate.gateway.relay.traced_calls import Headers, run_traced
from taskgate.gateway.tasks.deadlines import TaskDeadlines
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.run_queue import RunSlot
from taskgate.gateway.tasks.sends import TaskSends
from taskgate.gateway.tasks.server_reports import TaskSide, progress_note
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.client_profile import ClientProfile
from taskgate.ports.link import Link
from taskgate.ports.upstream import Upstream
from taskgate.ports.upstream_call import UpstreamCall
from taskgate.ports.upstream_replies import ErrorReply, InputRequired, Reply

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing

_DECLINED: Final = ErrorReply(
    wire.encode(
        {
            "code": -32602,
            "message": "The server requires a URL to be opened first, and that was declined.",
            "data": {"error_type": "input_refused", "executed": "maybe"},
        }
    ),
    -32602,
)


class _Declined(Exception):
    """A person declined to open a URL that the server requires."""


class TaskCall(msgspec.Struct, eq=False):
    records: TaskRecords
    questions: TaskQuestions
    deadlines: TaskDeadlines
    waterfall: Waterfall
    tracing: Tracing | None
    upstreams: Live[Mapping[str, Upstream]]
    events: EventHub

    async def send(self, sends: TaskSends, link: Link, profile: ClientProfile, slot: RunSlot) -> Reply:
        """Send the call, round by round, and return the last reply."""
        try:
            if self.tracing is None:
                return await self._rounds(sends, link, sends.params, profile, slot)
            # The stored intent has the caller's params; the trace context is added with each attempt.
            return await run_traced(
                self.tracing,
                sends.task,
                sends.params,
                lambda params, trace: self._rounds(sends, link, params, profile, slot, trace=trace),
                self.upstreams.value.get(sends.task.server),
            )
        except _Declined:
            return _DECLINED

    async def _rounds(
        self,
        sends: TaskSends,
        link: Link,
        params: Members,
        profile: ClientProfile,
        slot: RunSlot,
        *,
        trace: Headers = (),
    ) -> Reply:
        task = sends.task
        first = 2 if task.request_state is not None else 1

        async def send(params: Members, _number: int) -> Reply:
            return await self._recorded(task, link.request(self._upstream_call(sends, params, profile, trace)))

        async def next_round(reply: Reply, _number: int) -> Members | None:
            return await self._next_params(sends, reply, slot)

        return await in_rounds(link.server, await send_round(send, params, first), next_round, send, number=first)

    async def _next_params(self, sends: TaskSends, reply: Reply, slot: RunSlot) -> Members | None:
        """The params of the next round, with its intent stored; None if this reply is the last one."""
        task = sends.task
        slot.give_back()
        if isinstance(reply, InputRequired):
            questions, state = questions_of(task.server, reply), kept_state(reply)
            answers = await self.questions.ask_all(task.id, questions, state)
            given = {key: stateless_answer(questions[key], answer) for key, answer in answers.items()}
            await self._retake(slot, sends.task)
            await sends.next_round(next_params(sends.params, given, reply.state), state)
        elif isinstance(reply, ErrorReply) and reply.code == URL_REQUIRED and await self._urls_opened(task, reply):
            await self._retake(slot, sends.task)
            await sends.next_round(sends.params, None)
        else:
            return None
        return sends.params

    async def _retake(self, slot: RunSlot, task: Task) -> None:
        if not await slot.take(self.deadlines.max_wait_s(task)):
            raise partial_failure(task.server, "had no free slot for the next round in time")

    async def _urls_opened(self, task: Task, reply: ErrorReply) -> bool:
        """Ask the person to open the URLs that a stateful server requires. Return whether the call can be sent again.

        A stateless caller does not know this error, so the task asks. Raises _Declined.
        """
        questions = url_questions(reply.raw, task.server) if task.generation is Generation.STATELESS else {}
        answers = await self.questions.ask_all(task.id, questions) if questions else {}
        if not answers or any(answer.error is not None for answer in answers.values()):
            return False
        if not all(accepted(answer) for answer in answers.values()):
            raise _Declined
        return True

    async def _recorded(self, task: Task, call: Awaitable[Reply]) -> Reply:
        """Wait for the reply and record the call in the waterfall."""
        now, began = clock.wall(), clock.monotonic()
        span = self.waterfall.begin("task", "tools/call", task.tool, task.server, task.principal, now=now, began=began)
        span.belongs_to(task.id)
        if task.parent:
            span.made_by(task.parent, task.script_line)
        state = "error"
        try:
            reply = await call
            state = "error" if isinstance(reply, ErrorReply) else "ok"
            return reply
        except asyncio.CancelledError:
            state = "cancelled"
            raise
        finally:
            span.over(state, clock.monotonic())

    def _upstream_call(self, sends: TaskSends, params: Members, profile: ClientProfile, trace: Headers) -> UpstreamCall:
        task = sends.task
        return UpstreamCall(
            method="tools/call",
            params=params,
            profile=profile,
            timeout_s=task.execution_budget_ms / 1000,
            on_notification=lambda method, raw: self._on_notification(task, method, raw),
            on_question=lambda question: self.questions.ask(task.id, question),
            name=task.tool,
            requests_progress=True,
            conversation=task.conversation_key.stream,
            side=TaskSide(self.records, task),
            trace=trace,
            send_log=sends,
            long_lived=True,
        )

    def _on_notification(self, task: Task, method: str, raw: Raw | None) -> None:
        noted = progress_note(method, raw)
        if noted is not None:
            self.records.note(task.id, task.principal, noted)
        elif method == "notifications/message" and raw is not None:
            self.events.publish(TaskLogged(task.id, raw))
        elif method == COMPLETE:
            self.events.publish(ElicitationCompleted(task.server, raw))
