"""Bringing one task's call to its upstream: the order of writes, and what a failure proves.

The intent is synced before the first byte goes out, an upstream's task id before we go on, the result before anyone is told.
What a failure proves decides what may be done again; what cannot be known is said to be unknown. Called by `runs`, which sees to
it that each task is brought there once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from taskgate import clock
from taskgate.core import wire
from taskgate.core.activity.waterfall import Waterfall
from taskgate.core.errors import CallerError, Executed, UpstreamError
from taskgate.core.generations import Generation
from taskgate.core.governance.approval import Approval
from taskgate.core.questions import NO_STATE, Answer, accepted
from taskgate.core.tasks import endings
from taskgate.core.tasks.happening import AttemptVoided, Happening, UpstreamTaskKnown
from taskgate.core.tasks.task import Task, UpstreamHandle
from taskgate.core.tasks.transition import MayNotRepeat, may_send
from taskgate.core.wire import Members, Raw
from taskgate.gateway.budgets import Budgets
from taskgate.gateway.events.events import ElicitationCompleted, ProgressMade, TaskLogged
from taskgate.gateway.events.hub import EventHub
from taskgate.gateway.live import Live
from taskgate.gateway.relay import MAX_ROUNDS, question_in
from taskgate.gateway.tasks.conversation import Conversation
from taskgate.gateway.tasks.desk import TaskDesk, sent_params
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.replies import TaskResults, progress_note, usable
from taskgate.gateway.tasks.upstream_tasks import UpstreamTasks
from taskgate.gateway.traced import Headers, run_traced
from taskgate.gateway.url_elicitations import COMPLETE, URL_REQUIRED, url_questions
from taskgate.ports.store_answers import Intended, Stopped
from taskgate.ports.upstream import (
    CallerFace,
    ErrorReply,
    InputRequired,
    Link,
    Reply,
    Result,
    Upstream,
    UpstreamRequest,
)

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing

UNREACHABLE_TRIES: Final = 5
PAUSE_S: Final = 0.5
_NOT_OPENED: Final = "The server wants an address opened first, and that was declined. The call was not executed."
_DECLINED: Final = ErrorReply(
    wire.encode({"code": -32602, "message": _NOT_OPENED, "data": {"error_type": "input_refused", "executed": "no"}}),
    -32602,
)


class Recheck(Protocol):
    """The last check before a task's call is sent: would the gates still say what they said?"""

    async def prepare(self, task: Task) -> None:
        """Bring up to date what the check will look at. Raises UpstreamError if the server cannot be asked."""
        ...

    def __call__(self, task: Task, approval: Approval | None, now_ms: int) -> Happening | None:
        """Runs inside the transaction that writes the intent. None lets the call go; otherwise what ends it."""
        ...


class Attempts:
    def __init__(
        self,
        desk: TaskDesk,
        questions: TaskQuestions,
        results: TaskResults,
        following: UpstreamTasks,
        *,
        recheck: Recheck,
        upstreams: Live[Mapping[str, Upstream]],
        budgets: Budgets,
        waterfall: Waterfall,
        tracing: Tracing | None,
        events: EventHub,
    ) -> None:
        self.following = following
        self._desk = desk
        self._questions = questions
        self._results = results
        self._recheck = recheck
        self._upstreams = upstreams
        self._budgets = budgets
        self._waterfall = waterfall
        self._tracing = tracing
        self._events = events

    async def execute(self, task: Task, conversation: Conversation) -> None:
        """In its turn, if its server takes only so many at a time."""
        line = self._budgets.lines.get(task.server)
        if line is None:
            await self._try_repeatedly(task, conversation)
            return
        try:
            await line.enter(task.caller, task.ttl_ms / 1000)
        except CallerError as problem:
            await self._desk.conclude(task.id, endings.by_error(task, problem))
            return
        try:
            await self._try_repeatedly(task, conversation)
        finally:
            line.leave(task.caller)

    async def _try_repeatedly(self, task: Task, conversation: Conversation) -> None:
        for attempt in range(UNREACHABLE_TRIES):
            problem = await self._attempt(task, conversation)
            if problem is None:
                return
            if attempt + 1 < UNREACHABLE_TRIES:
                await clock.sleep(PAUSE_S * 2**attempt)
                continue
            await self._give_up(task, problem)

    async def _attempt(self, task: Task, conversation: Conversation) -> UpstreamError | None:
        """One try. Returns what went wrong if it may be tried again; None when the task has moved on."""
        upstream = self._upstreams.value.get(task.server)
        if upstream is None:
            return UpstreamError("upstream_unreachable", f"The server {task.server} is not configured any more.")
        try:
            await self._recheck.prepare(task)
            link = await upstream.link(conversation.key, conversation.face)
        except UpstreamError as problem:
            return problem
        params = self.following.asked_for_task(task, link, sent_params(task))
        intended = await self._intended(task, params)
        return None if intended is None else await self._send(intended, link, params, conversation)

    async def _intended(self, task: Task, params: Members) -> Task | None:
        """The task with its intent synced, or None if nothing may be sent."""
        body_hash = hashlib.sha256(wire.join(params)).hexdigest()
        intended = await self._desk.patiently(
            lambda: self._desk.store.intend(task.id, byte_hash=body_hash, upstream=task.server, look=self._recheck)
        )
        match intended:
            case Intended(task=sent):
                self._desk.board.changed(sent)
                return sent
            case Stopped(task=stopped):
                self._desk.moved(stopped)
            case MayNotRepeat():
                await self._give_up(task, UpstreamError("upstream_unreachable", "It may not be sent again."))
            case _:
                pass
        return None

    async def _send(self, task: Task, link: Link, params: Members, conversation: Conversation) -> UpstreamError | None:
        face = self.following.face_for(link, conversation.face)
        try:
            reply = await self._answered(task, link, params, face)
        except UpstreamError as problem:
            return await self._after_failure(task, problem)
        handle = self.following.handle_in(link, reply)
        if handle is not None:
            await self._follow_new(task, link, handle, conversation)
            return None
        if isinstance(reply, Result):
            reply = Result(self._results.cut(task.server, reply.raw))
        await self._results.record(task.id, reply)
        return None

    async def _answered(self, task: Task, link: Link, params: Members, face: CallerFace) -> Reply:
        if self._tracing is None:
            return await self._rounds(task, link, params, face)
        # What was intended is what the caller asked; the trace context is our own addition, new with each attempt.
        return await run_traced(
            self._tracing, task, params, lambda sent, trace: self._rounds(task, link, sent, face, trace)
        )

    async def _rounds(self, task: Task, link: Link, params: Members, face: CallerFace, trace: Headers = ()) -> Reply:
        """A stateless upstream may ask in its results; answers go back with the same call."""
        for _round in range(MAX_ROUNDS + 1):
            reply = await self._recorded(task, link.request(self._outgoing(task, params, face, trace)))
            if isinstance(reply, InputRequired):
                params = await self._next_params(task, link, params, reply)
            elif isinstance(reply, ErrorReply) and reply.code == URL_REQUIRED:
                unopened = await self._unopened(task, reply)
                if unopened is not None:
                    return unopened
            else:
                return reply
        raise UpstreamError("upstream_protocol", f"The server {link.server} asked too many questions.")

    async def _next_params(self, task: Task, link: Link, params: Members, reply: InputRequired) -> Members:
        asked = {key: question_in(raw, link.server) for key, raw in reply.requests.items()}
        state = bytes(reply.state) if reply.state is not None else NO_STATE
        answers = await self._questions.ask_all(task.id, asked, state) if asked else {}
        given = {key: usable(asked[key], answer) for key, answer in answers.items()}
        return _next_round(params, given, reply.state)

    async def _unopened(self, task: Task, reply: ErrorReply) -> ErrorReply | None:
        """A stateful server wants addresses opened before it does anything. A stateless caller does not know that error: its
        task asks, and the call is sent again once all were opened. What the task ends with if they were not.
        """
        asked = url_questions(reply.raw, task.server) if task.generation is Generation.STATELESS else {}
        answers = await self._questions.ask_all(task.id, asked) if asked else {}
        if not answers or any(answer.error is not None for answer in answers.values()):
            return reply
        return None if all(accepted(answer) for answer in answers.values()) else _DECLINED

    async def go_on(self, task: Task, conversation: Conversation) -> None:
        """A stateless upstream waits for answers whose first asker did not live to bring them: ask, then continue."""
        upstream = self._upstreams.value.get(task.server)
        answers = await self._questions.take_up(task)
        current = await self._desk.store.get(task.id)
        if upstream is None or current is None or current.state.is_terminal:
            return
        kept = task.request_state
        state = Raw(kept) if kept is not None and kept != NO_STATE else None
        given = {key: _given(answer) for key, answer in answers.items()}
        try:
            link = await upstream.link(conversation.key, conversation.face)
        except UpstreamError as problem:
            await self._give_up(current, problem)
            return
        problem_left = await self._send(current, link, _next_round(sent_params(task), given, state), conversation)
        if problem_left is not None:
            await self._give_up(current, problem_left)

    async def _recorded(self, task: Task, call: Awaitable[Reply]) -> Reply:
        span = self._waterfall.begin("task", "tools/call", task.tool, task.server, task.principal, clock.wall())
        state = "error"
        try:
            reply = await call
            state = "error" if isinstance(reply, ErrorReply) else "ok"
            return reply
        except asyncio.CancelledError:
            state = "cancelled"
            raise
        finally:
            span.over(state, clock.wall())

    def _outgoing(self, task: Task, params: Members, face: CallerFace, trace: Headers) -> UpstreamRequest:
        return UpstreamRequest(
            "tools/call",
            params,
            face,
            task.execution_budget_ms / 1000,
            lambda method, raw: self._heard(task, method, raw),
            lambda question: self._questions.ask(task.id, question),
            name=task.tool,
            wants_progress=True,
            asker=task.caller,
            trace=trace,
        )

    def _heard(self, task: Task, method: str, raw: Raw | None) -> None:
        noted = progress_note(method, raw)
        if noted is not None:
            self._desk.store.note(task.id, noted)
            self._events.publish(ProgressMade(task.id, noted))
        elif method == "notifications/message" and raw is not None:
            self._events.publish(TaskLogged(task.id, raw))
        elif method == COMPLETE:
            self._events.publish(ElicitationCompleted(task.server, raw))

    async def _after_failure(self, task: Task, problem: UpstreamError) -> UpstreamError | None:
        current = await self._desk.store.get(task.id)
        if current is None or current.state.is_terminal:
            return None
        if problem.executed is Executed.NO:
            await self._desk.conclude(task.id, AttemptVoided())
            return problem
        if may_send(current) and problem.error_type != "upstream_timeout":
            return problem
        await self._desk.conclude(task.id, endings.lost(current, problem))
        return None

    async def _give_up(self, task: Task, problem: UpstreamError) -> None:
        current = await self._desk.store.get(task.id)
        if current is not None and not current.state.is_terminal:
            await self._desk.conclude(task.id, endings.lost(current, problem))

    # The upstream made a task of it

    async def _follow_new(self, task: Task, link: Link, handle: UpstreamHandle, conversation: Conversation) -> None:
        """Its id is committed before anything else; then its end is waited for."""
        known = await self._desk.conclude(task.id, UpstreamTaskKnown(handle))
        if known is not None:
            await self.follow(known, conversation, link)

    async def follow(self, task: Task, conversation: Conversation, link: Link | None = None) -> None:
        """To the end of the upstream's own task; where the upstream has forgotten it, by the class of the tool."""
        upstream = self._upstreams.value.get(task.server)
        if upstream is None:
            await self._give_up(task, UpstreamError("upstream_unreachable", "The server is not configured any more."))
            return
        if await self.following.to_the_end(task, upstream, conversation, link):
            return
        forgotten = await self._desk.conclude(task.id, UpstreamTaskKnown(None))
        if forgotten is None:
            return
        if may_send(forgotten):
            await self._try_repeatedly(forgotten, conversation)
        else:
            await self._give_up(forgotten, UpstreamError("upstream_unreachable", "The server forgot its task."))


def _next_round(params: Members, answers: Mapping[str, Raw], state: Raw | None) -> Members:
    again = {**params, "inputResponses": wire.raw(dict(answers))}
    again.pop("requestState", None)
    return again if state is None else {**again, "requestState": state}


def _given(answer: Answer) -> Raw:
    return Raw(answer.result) if answer.result is not None else Raw(b'{"action":"cancel"}')
