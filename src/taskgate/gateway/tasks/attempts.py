"""Bringing one task's call to its upstream: the order of writes, and what a failure proves.

The intent is synced before the first byte goes out, an upstream's task id before we go on, the result before anyone is told.
What a failure proves decides what may be done again; what cannot be known is said to be unknown. Called by `runs`, which sees to
it that each task is brought there once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError, Executed, UpstreamError
from taskgate.core.generations.generation import Generation
from taskgate.core.questions.question import NO_STATE, Answer, accepted
from taskgate.core.tasks import endings
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import Noted, UpstreamTaskKnown, may_send
from taskgate.core.waterfall import Waterfall
from taskgate.core.wire import Members, Raw
from taskgate.gateway.events import ElicitationCompleted, EventHub, TaskLogged
from taskgate.gateway.plan import Live
from taskgate.gateway.questions.elicitations import COMPLETE, URL_REQUIRED, url_questions
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
from taskgate.gateway.requests.budgets import Budgets
from taskgate.gateway.requests.caller_keys import fair_key_of
from taskgate.gateway.tasks.account_questions import ASK_AT_MOST, AccountQuestions
from taskgate.gateway.tasks.conversation import Conversation
from taskgate.gateway.tasks.deadlines import TaskDeadlines
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.run_queue import RunQueue, Turn
from taskgate.gateway.tasks.sends import NotSent, Recheck, TaskSends
from taskgate.gateway.tasks.server_reports import TaskSide, progress_note
from taskgate.gateway.tasks.task_records import TaskRecords, sent_params
from taskgate.gateway.tasks.task_results import TaskResults
from taskgate.gateway.tasks.upstream_tasks import UpstreamTasks
from taskgate.ports.credentials import AccountNeeded
from taskgate.ports.upstream import (
    CallFailed,
    ClientProfile,
    ErrorReply,
    InputRequired,
    Link,
    Reply,
    Result,
    Upstream,
    UpstreamCall,
    never_sent,
)

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
_NOT_OPENED: Final = "The server wants an address opened before it goes on, and that was declined."
_DECLINED: Final = ErrorReply(
    wire.encode({"code": -32602, "message": _NOT_OPENED, "data": {"error_type": "input_refused", "executed": "maybe"}}),
    -32602,
)


_NO_TURN: Final = "The server {} had too much to do for as long as the call was worth waiting for. It was not executed."


@dataclass(frozen=True, slots=True)
class _MadeTask:
    """The upstream made a task of the call."""

    task: Task
    link: Link


class _Declined(Exception):
    """Somebody would not open an address that the server insists on."""


class Attempts:
    def __init__(
        self,
        records: TaskRecords,
        questions: TaskQuestions,
        results: TaskResults,
        following: UpstreamTasks,
        queue: RunQueue,
        *,
        accounts: AccountQuestions,
        recheck: Recheck,
        deadlines: TaskDeadlines,
        upstreams: Live[Mapping[str, Upstream]],
        budgets: Budgets,
        waterfall: Waterfall,
        tracing: Tracing | None,
        events: EventHub,
    ) -> None:
        self.following = following
        self.queue = queue
        self._records = records
        self._questions = questions
        self._results = results
        self._accounts = accounts
        self._recheck = recheck
        self._deadlines = deadlines
        self._upstreams = upstreams
        self._budgets = budgets
        self._waterfall = waterfall
        self._tracing = tracing
        self._events = events
        self._stopped = False

    def stop_sending(self) -> None:
        """The gateway is going down: what has not been sent waits for the next start."""
        self._stopped = True

    async def execute(self, task: Task, conversation: Conversation) -> None:
        """Bring the call to its server, from its first round or from the one that the last owner had come to."""
        try:
            await self._execute(task, conversation)
        finally:
            self._deadlines.run_ended(task.id)

    async def _execute(self, task: Task, conversation: Conversation) -> None:
        sends = await self._begin(task)
        if sends is None:
            return
        asked = 0
        for pause_s in _pauses():
            problem = await self._in_turn(sends, conversation)
            if problem is None or self._stopped:
                return
            if isinstance(problem, AccountNeeded):
                asked += 1
                if asked <= ASK_AT_MOST and await self._accounts.settled(sends.task, problem):
                    continue
                await sends.give_up(problem)
                return
            if not self._time_left(sends.task, pause_s):
                await sends.give_up(problem)
                return
            self._records.store.note(sends.task.id, Noted(_waiting_for(sends.task, problem)))
            await clock.sleep(pause_s)

    async def _begin(self, task: Task) -> TaskSends | None:
        """What is to be sent; None if the task ended meanwhile. A call that was asked something goes on with its answers."""
        if task.request_state is None:
            return TaskSends(self._records, self._recheck, task, None)
        answers = await self._questions.take_up(task)
        current = await self._records.current(task.id)
        if current is None or current.state.is_terminal:
            return None
        state = Raw(task.request_state) if task.request_state != NO_STATE else None
        given = {key: _given(answer) for key, answer in answers.items()}
        return TaskSends(self._records, self._recheck, current, next_params(sent_params(task), given, state))

    def _time_left(self, task: Task, pause_s: float) -> bool:
        left_s = self._deadlines.try_left_s(task)
        return left_s is None or pause_s < left_s

    async def _in_turn(self, sends: TaskSends, conversation: Conversation) -> UpstreamError | None:
        """One try, in its turn if the server takes only so many at a time."""
        task = sends.task
        line = self._budgets.queues.get(task.server)
        if line is None:
            return await self._attempt(sends, conversation)
        try:
            await line.enter(fair_key_of(task), task.ttl_ms / 1000, limited=False)
        except CallerError as problem:
            await self._records.conclude(task.id, endings.by_error(task, problem))
            return None
        try:
            return await self._attempt(sends, conversation)
        finally:
            line.leave(fair_key_of(task))

    async def _attempt(self, sends: TaskSends, conversation: Conversation) -> UpstreamError | None:
        """One try. Returns what went wrong if it may be tried again; None when the task has moved on."""
        turn = self.queue.turn(sends.task)
        try:
            outcome = await self._in_contact(sends, conversation, turn)
        finally:
            turn.give_back()
        if isinstance(outcome, _MadeTask):
            await self.follow(outcome.task, conversation, outcome.link)
            return None
        return outcome

    async def _in_contact(
        self, sends: TaskSends, conversation: Conversation, turn: Turn
    ) -> UpstreamError | _MadeTask | None:
        task = sends.task
        if not await turn.take(self._patience_s(task)):
            await sends.give_up(UpstreamError("overloaded", _NO_TURN.format(task.server)))
            return None
        upstream = self._upstreams.value.get(task.server)
        if upstream is None:
            return UpstreamError("upstream_unreachable", f"The server {task.server} is not configured any more.")
        try:
            await self._recheck.prepare(task)
            link = await upstream.link(conversation.key, conversation.profile)
        except UpstreamError as problem:
            return never_sent(task.server, problem)
        if self._stopped:
            return None
        sends.prepare(self.following.asked_for_task(task, link, sends.params))
        try:
            await sends.sends_again()
            return await self._send(sends, link, conversation, turn)
        except NotSent:
            return None
        except UpstreamError as problem:
            return problem if await sends.after_failure(problem) else None

    def _patience_s(self, task: Task) -> float | None:
        left_s = self._deadlines.try_left_s(task)
        return None if left_s is None else max(0.0, left_s)

    async def _send(self, sends: TaskSends, link: Link, conversation: Conversation, turn: Turn) -> _MadeTask | None:
        task = sends.task
        try:
            reply = await self._answered(sends, link, self.following.face_for(link, conversation.profile), turn)
        except _Declined:
            reply = _DECLINED
        handle = await self.following.handle_in(link, reply)
        if handle is not None:
            # Its id is committed before anything else; then its end is waited for.
            known = await self._records.conclude(task.id, UpstreamTaskKnown(handle))
            return _MadeTask(known, link) if known is not None else None
        if isinstance(reply, Result):
            reply = Result(await self._results.cut(task.server, reply.raw))
        await self._results.record(task.id, reply)
        return None

    async def _answered(self, sends: TaskSends, link: Link, profile: ClientProfile, turn: Turn) -> Reply:
        if self._tracing is None:
            return await self._rounds(sends, link, sends.params, profile, turn)
        # What was intended is what the caller asked; the trace context is our own addition, new with each attempt.
        return await run_traced(
            self._tracing,
            sends.task,
            sends.params,
            lambda sent, trace: self._rounds(sends, link, sent, profile, turn, trace=trace),
        )

    async def _rounds(
        self, sends: TaskSends, link: Link, params: Members, profile: ClientProfile, turn: Turn, *, trace: Headers = ()
    ) -> Reply:
        """A stateless upstream may ask in its results; answers go back with the same call."""
        task = sends.task
        first = 2 if task.request_state is not None else 1

        async def send(params: Members, _number: int) -> Reply:
            return await self._recorded(task, link.request(self._outgoing(sends, params, profile, trace)))

        async def go_on(reply: Reply, _number: int) -> Members | None:
            return await self._next_params(sends, reply, turn)

        return await in_rounds(link.server, await send_round(send, params, first), go_on, send, number=first)

    async def _next_params(self, sends: TaskSends, reply: Reply, turn: Turn) -> Members | None:
        """What the next round sends, with its intent written; None if the reply is the last one."""
        task = sends.task
        turn.give_back()
        if isinstance(reply, InputRequired):
            asked, state = questions_of(task.server, reply), kept_state(reply)
            answers = await self._questions.ask_all(task.id, asked, state)
            given = {key: stateless_answer(asked[key], answer) for key, answer in answers.items()}
            await self._turn_again(sends.task, turn)
            await sends.next_round(next_params(sends.params, given, reply.state), state)
        elif isinstance(reply, ErrorReply) and reply.code == URL_REQUIRED and await self._opened(task, reply):
            await self._turn_again(sends.task, turn)
            await sends.next_round(sends.params, None)
        else:
            return None
        return sends.params

    async def _turn_again(self, task: Task, turn: Turn) -> None:
        if not await turn.take(self._patience_s(task)):
            raise partial_failure(task.server, "had no room for the next round in time")

    async def _opened(self, task: Task, reply: ErrorReply) -> bool:
        """A stateful server wants addresses opened before it does anything. A stateless caller does not know that error: its
        task asks, and the call is sent again once all were opened.
        """
        asked = url_questions(reply.raw, task.server) if task.generation is Generation.STATELESS else {}
        answers = await self._questions.ask_all(task.id, asked) if asked else {}
        if not answers or any(answer.error is not None for answer in answers.values()):
            return False
        if not all(accepted(answer) for answer in answers.values()):
            raise _Declined
        return True

    async def _recorded(self, task: Task, call: Awaitable[Reply]) -> Reply:
        now, began = clock.wall(), clock.monotonic()
        span = self._waterfall.begin("task", "tools/call", task.tool, task.server, task.principal, now=now, began=began)
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

    def _outgoing(self, sends: TaskSends, params: Members, profile: ClientProfile, trace: Headers) -> UpstreamCall:
        task = sends.task
        return UpstreamCall(
            "tools/call",
            params,
            profile,
            task.execution_budget_ms / 1000,
            lambda method, raw: self._heard(task, method, raw),
            lambda question: self._questions.ask(task.id, question),
            name=task.tool,
            wants_progress=True,
            asker=task.asked_in.stream,
            side=TaskSide(self._records, task),
            trace=trace,
            send_log=sends,
            long_lived=True,
        )

    def _heard(self, task: Task, method: str, raw: Raw | None) -> None:
        noted = progress_note(method, raw)
        if noted is not None:
            self._records.note(task.id, task.principal, noted)
        elif method == "notifications/message" and raw is not None:
            self._events.publish(TaskLogged(task.id, raw))
        elif method == COMPLETE:
            self._events.publish(ElicitationCompleted(task.server, raw))

    # The upstream made a task of it

    async def follow(self, task: Task, conversation: Conversation, link: Link | None = None) -> None:
        """To the end of the upstream's own task; where the upstream has forgotten it, by the class of the tool."""
        upstream = self._upstreams.value.get(task.server)
        if upstream is None:
            await self._lost(task, "The server is not configured any more.")
            return
        if await self.following.to_the_end(task, upstream, conversation, link):
            return
        forgotten = await self._records.conclude(task.id, UpstreamTaskKnown(None))
        if forgotten is None:
            return
        if may_send(forgotten):
            await self.execute(forgotten, conversation)
        else:
            await self._lost(forgotten, "The server forgot its task.")

    async def _lost(self, task: Task, why: str) -> None:
        problem = UpstreamError("upstream_unreachable", why, executed=Executed.MAYBE)
        current = await self._records.current(task.id)
        if current is not None and not current.state.is_terminal:
            await self._records.conclude(task.id, endings.lost(current, problem))


def _waiting_for(task: Task, problem: UpstreamError) -> str:
    why = (
        f"The server {problem.server} {problem.why}" if isinstance(problem, CallFailed) else problem.message.rstrip(".")
    )
    before = "may have been executed before, is safe to repeat" if task.may_have_been_sent else "has not been executed"
    return f"{why}. The call {before} and will be tried again."[:500]


def _pauses() -> Iterator[float]:
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _given(answer: Answer) -> Raw:
    return Raw(answer.result) if answer.result is not None else Raw(b'{"action":"cancel"}')
