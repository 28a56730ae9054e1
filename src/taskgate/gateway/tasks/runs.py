"""Running tasks: one execution each, whoever asks for it and however often.

The order of writes is the safety argument: the intent is synced before the first byte goes out, an upstream's task id before we go
on, the result before anyone is told. What a failure proves decides what may be done again; what cannot be known is said to be
unknown.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from taskgate.core import wire
from taskgate.core.errors import CallerError, Executed, TaskgateError, UpstreamError
from taskgate.core.tasks.happening import AttemptVoided, ErrorCame, Noted
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import may_send
from taskgate.core.wire import Members, Raw
from taskgate.gateway.budgets import Line
from taskgate.gateway.relay import question_in
from taskgate.gateway.tasks.desk import TaskDesk, sent_params
from taskgate.gateway.tasks.endings import lose_contact, own_error, progress_note, record_reply, usable
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.upstream_tasks import UpstreamTasks
from taskgate.ports.store_answers import Intended, Stopped
from taskgate.ports.task_store import LastLook, just_go
from taskgate.ports.upstream import (
    CallerFace,
    InputRequired,
    Link,
    LinkKey,
    Reply,
    Result,
    Upstream,
    UpstreamRequest,
)

log = structlog.get_logger("taskgate")

UNREACHABLE_TRIES: Final = 5
PAUSE_S: Final = 0.5
EVERYTHING: Final = CallerFace({"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}})


@dataclass(frozen=True, slots=True)
class Conversation:
    """Over which link a task talks to its upstream, and what that upstream is told about the caller."""

    key: LinkKey
    face: CallerFace
    declared: Mapping[str, Any] | None = None
    """What the caller itself said it can do; None once nobody knows any more."""


class Runs:
    def __init__(
        self, desk: TaskDesk, questions: TaskQuestions, upstreams: Callable[[], Mapping[str, Upstream]]
    ) -> None:
        self.look: LastLook = just_go
        self.prepare: Callable[[Task], Awaitable[None]] | None = None
        """Brings up to date what the last look will look at; may fail like an upstream."""
        self.line_of: Callable[[str], Line | None] = lambda _server: None
        self.on_progress: Callable[[str, Noted], None] = lambda _task_id, _noted: None
        self._desk = desk
        self._questions = questions
        self._upstreams = upstreams
        self._running: dict[str, asyncio.Task[None]] = {}
        self._conversations: dict[str, Conversation] = {}
        self._following = UpstreamTasks(desk, questions)

    def __len__(self) -> int:
        return len(self._running)

    def supports_upstream_tasks(self, answer: Callable[[str, str], bool]) -> None:
        """Who knows which tools an upstream can run as tasks."""
        self._following.supports = answer

    def remember(self, task_id: str, conversation: Conversation) -> None:
        self._conversations[task_id] = conversation

    def declared(self, task_id: str) -> Mapping[str, Any] | None:
        conversation = self._conversations.get(task_id)
        return conversation.declared if conversation is not None else None

    def sessions_in_use(self) -> frozenset[str]:
        return frozenset(
            self._conversations[task_id].key.session for task_id in self._running if task_id in self._conversations
        )

    def start(self, task: Task) -> None:
        """Run it, unless it is running already: concurrent readers share one execution."""
        if task.id not in self._running:
            self._spawn(task, self._execute(task))

    def follow(self, task: Task) -> None:
        """Its upstream made a task of it: wait for that one, never send again."""
        if task.id not in self._running:
            self._spawn(task, self._follow_stored(task))

    def adopt(self, task: Task, work: asyncio.Task[None]) -> None:
        """A promoted call is already being carried by someone; remember who, so that it can be cancelled."""
        self._running[task.id] = work
        work.add_done_callback(lambda _: self._ended(task.id))

    def _spawn(self, task: Task, work: Any) -> None:
        run = asyncio.get_running_loop().create_task(self._guarded(task, work))
        self._running[task.id] = run
        run.add_done_callback(lambda _: self._ended(task.id))

    def _ended(self, task_id: str) -> None:
        self._running.pop(task_id, None)
        self._conversations.pop(task_id, None)

    async def _guarded(self, task: Task, work: Any) -> None:
        """Around one task run: whatever breaks is told to the one who waits for the task, and to the log."""
        try:
            await work
        except TaskgateError as problem:
            log.error("task run could not be recorded", task=task.id, why=problem.message)
        except Exception as fault:
            log.error("task run failed", task=task.id, exc_info=fault)
            text = "Something went wrong inside the gateway while running this task; its log says more."
            error = wire.encode({"code": -32603, "message": text})
            current = await self._desk.store.get(task.id)
            executed = Executed.MAYBE if current is not None and current.may_have_been_sent else Executed.NO
            await self._desk.advance(task.id, ErrorCame(error, text, executed))

    async def _execute(self, task: Task) -> None:
        line = self.line_of(task.server)
        if line is None:
            await self._try_repeatedly(task)
            return
        try:
            await line.enter(task.caller, task.ttl_ms / 1000)
        except CallerError as problem:
            await self._desk.advance(task.id, ErrorCame(own_error(task, problem), problem.message, Executed.NO))
            return
        try:
            await self._try_repeatedly(task)
        finally:
            line.leave(task.caller)

    async def _try_repeatedly(self, task: Task) -> None:
        for attempt in range(UNREACHABLE_TRIES):
            outcome = await self._attempt(task)
            if outcome is None:
                return
            if attempt + 1 < UNREACHABLE_TRIES:
                await asyncio.sleep(PAUSE_S * 2**attempt)
                continue
            await self._fail(task, outcome)

    async def _attempt(self, task: Task) -> UpstreamError | None:
        """One try. Returns the proof that nothing was executed, if there is one; None when the task has moved on."""
        upstream = self._upstreams().get(task.server)
        if upstream is None:
            return UpstreamError("upstream_unreachable", f"The server {task.server} is not configured any more.")
        conversation = self._conversations.get(task.id, Conversation(LinkKey(task.principal), EVERYTHING))
        try:
            if self.prepare is not None:
                await self.prepare(task)
            link = await upstream.link(conversation.key, conversation.face)
        except UpstreamError as problem:
            return problem
        params = self._following.asked_for_task(task, link, sent_params(task))
        body_hash = hashlib.sha256(wire.join(params)).hexdigest()
        intended = await self._desk.store.intend(task.id, byte_hash=body_hash, upstream=task.server, look=self.look)
        if isinstance(intended, Stopped):
            self._desk.board.changed(intended.task)
            return None
        if not isinstance(intended, Intended):
            return None
        self._desk.board.changed(intended.task)
        return await self._send(intended.task, link, params, conversation.face)

    async def _send(self, task: Task, link: Link, params: Members, face: CallerFace) -> UpstreamError | None:
        face = self._following.face_for(link, face)
        try:
            reply = await self._rounds(task, link, params, face)
        except UpstreamError as problem:
            return await self._after_failure(task, problem)
        await self._finish(task, link, reply)
        return None

    async def _rounds(self, task: Task, link: Link, params: Members, face: CallerFace) -> Reply:
        """A stateless upstream may ask in its results; answers go back with the same call."""
        reply = await link.request(self._outgoing(task, params, face))
        while isinstance(reply, InputRequired):
            asked = {key: question_in(raw, link.server) for key, raw in reply.requests.items()}
            state = bytes(reply.state) if reply.state is not None else None
            answers = await self._questions.ask_all(task.id, asked, state)
            params = {**params, "inputResponses": wire.raw({key: usable(asked[key], a) for key, a in answers.items()})}
            if reply.state is not None:
                params["requestState"] = reply.state
            reply = await link.request(self._outgoing(task, params, face))
        return reply

    def _outgoing(self, task: Task, params: Members, face: CallerFace) -> UpstreamRequest:
        return UpstreamRequest(
            "tools/call",
            params,
            face,
            task.execution_budget_ms / 1000,
            lambda method, raw: self._heard(task.id, method, raw),
            lambda question: self._questions.ask(task.id, question),
            name=task.tool,
            wants_progress=True,
            asker=task.caller,
        )

    def _heard(self, task_id: str, method: str, raw: Raw | None) -> None:
        noted = progress_note(method, raw)
        if noted is not None:
            self._desk.store.note(task_id, noted)
            self.on_progress(task_id, noted)

    async def _after_failure(self, task: Task, problem: UpstreamError) -> UpstreamError | None:
        current = await self._desk.store.get(task.id)
        if current is None or current.state.is_terminal:
            return None
        if problem.executed is Executed.NO:
            await self._desk.advance(task.id, AttemptVoided())
            return problem
        if may_send(current) and problem.error_type != "upstream_timeout":
            return problem
        await lose_contact(self._desk, current, problem)
        return None

    async def _fail(self, task: Task, problem: UpstreamError) -> None:
        current = await self._desk.store.get(task.id)
        if current is None or current.state.is_terminal:
            return
        if current.may_have_been_sent:
            await lose_contact(self._desk, current, problem)
        else:
            await self._desk.advance(task.id, ErrorCame(own_error(task, problem), problem.message, Executed.NO))

    async def _finish(self, task: Task, link: Link, reply: Reply) -> None:
        handle = self._following.handle_in(link, reply)
        if handle is None:
            if isinstance(reply, Result):
                reply = Result(self._desk.cut(task.server, reply.raw))
            await record_reply(self._desk, task.id, reply)
            return
        await self._following.follow(task, link, handle)

    async def _follow_stored(self, task: Task) -> None:
        handle = task.upstream_handle
        upstream = self._upstreams().get(task.server)
        if handle is None or upstream is None:
            await lose_contact(self._desk, task, UpstreamError("upstream_unreachable", "The server is gone."))
            return
        conversation = self._conversations.get(task.id, Conversation(LinkKey(task.principal), EVERYTHING))
        await self._following.take_up(task, upstream, conversation.key, conversation.face)

    async def cancel(self, task: Task) -> None:
        """Stop the run; the link tells the upstream as its generation wants it told."""
        handle = task.upstream_handle
        upstream = self._upstreams().get(task.server)
        running = self._running.get(task.id)
        if handle is not None and upstream is not None:
            await self._following.cancel_upstream(task, upstream, self._conversations.get(task.id))
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        if task.cancel_owed:
            await self._desk.store.told_upstream(task.id)

    async def close(self) -> None:
        """Stop running without ending the tasks: the next start finds them in the store."""
        running = list(self._running.values())
        for run in running:
            run.cancel()
        await asyncio.gather(*running, return_exceptions=True)
