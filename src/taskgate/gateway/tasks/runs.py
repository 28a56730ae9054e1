"""Running tasks: one execution each, whoever asks for it and however often.

Knows which tasks are being run in this process, by whom, and over which conversation. How a run goes is in `attempts`; what
must happen after a crash is in `recover`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from taskgate.core.activity.waterfall import Waterfall
from taskgate.core.errors import Executed, GatewayFault, TaskgateError
from taskgate.core.tasks import endings
from taskgate.core.tasks.happening import Noted
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.budgets import Line
from taskgate.gateway.tasks.attempts import Attempts
from taskgate.gateway.tasks.conversation import Conversation, stored_conversation
from taskgate.gateway.tasks.desk import TaskDesk
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.ports.task_store import LastLook
from taskgate.ports.upstream import Upstream
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    from taskgate.telemetry.tracing import Tracing


class Runs:
    def __init__(
        self, desk: TaskDesk, questions: TaskQuestions, upstreams: Callable[[], Mapping[str, Upstream]]
    ) -> None:
        self.closing = False
        self.on_idle: Callable[[str], Awaitable[None]] | None = None
        """Told when the last run of a session's conversation has ended: nobody may need that conversation any more."""
        self._desk = desk
        self._upstreams = upstreams
        self._attempts = Attempts(desk, questions, upstreams)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._conversations: dict[str, Conversation] = {}
        self._in_use: Counter[str] = Counter()
        self._courtesies: set[asyncio.Task[None]] = set()
        desk.board.listeners.append(self._changed)

    def __len__(self) -> int:
        return len(self._running)

    # What the run needs from the rest of the gateway

    def look_with(self, look: LastLook, prepare: Callable[[Task], Awaitable[None]]) -> None:
        """Who looks once more before a byte goes out, and who brings up to date what is looked at."""
        self._attempts.look, self._attempts.prepare = look, prepare

    def queue_in(self, line_of: Callable[[str], Line | None]) -> None:
        self._attempts.line_of = line_of

    def tell(self, progress: Callable[[str, Noted], None], logged: Callable[[str, Raw], None]) -> None:
        """Who passes on what a server says while it runs a task."""
        self._attempts.on_progress, self._attempts.on_log = progress, logged
        self._attempts.following.on_log = logged

    def tell_elicitation_over(self, tell: Callable[[str, Raw | None], None]) -> None:
        """Who passes on that an address, given to a caller, has done its work."""
        self._attempts.elicitation_over = self._attempts.following.elicitation_over = tell

    def progressed(self, task_id: str, noted: Noted) -> None:
        self._attempts.on_progress(task_id, noted)

    def draw_in(self, waterfall: Waterfall) -> None:
        self._attempts.waterfall = waterfall

    def trace(self, tracing: Tracing | None) -> None:
        self._attempts.tracing = tracing

    def supports_upstream_tasks(self, answer: Callable[[str, str], bool]) -> None:
        """Who knows which tools an upstream can run as tasks."""
        self._attempts.following.supports = answer

    # Conversations

    def remember(self, task_id: str, conversation: Conversation) -> None:
        if task_id not in self._conversations:
            self._conversations[task_id] = conversation
            self._in_use[conversation.key.session] += 1

    def declared(self, task_id: str) -> Mapping[str, Any] | None:
        conversation = self._conversations.get(task_id)
        return conversation.declared if conversation is not None else None

    def uses(self, session_id: str) -> bool:
        """Whether this session's upstream conversations must stay: a task runs in them, or is still to run."""
        return self._in_use[session_id] > 0

    def _conversation(self, task: Task) -> Conversation:
        self.remember(task.id, self._conversations.get(task.id) or stored_conversation(task))
        return self._conversations[task.id]

    # Running

    def start(self, task: Task) -> None:
        """Run it, unless it is running already: concurrent readers share one execution."""
        if task.id not in self._running:
            self._spawn(task, self._attempts.execute(task, self._conversation(task)))

    def follow(self, task: Task) -> None:
        """Its upstream made a task of it: wait for that one, never send again."""
        if task.id not in self._running:
            self._spawn(task, self._attempts.follow(task, self._conversation(task)))

    def go_on(self, task: Task) -> None:
        """Its upstream waits for answers: put the questions again, then continue the same call."""
        if task.id not in self._running:
            self._spawn(task, self._attempts.go_on(task, self._conversation(task)))

    def adopt(self, task: Task, work: asyncio.Task[None]) -> None:
        """A promoted call is already being carried by someone; remember who, so that it can be cancelled."""
        self._running[task.id] = work
        work.add_done_callback(lambda done: self._ended(task.id, done))

    def hand_back(self, task: Task) -> None:
        """Whoever carried a promoted call is done with it, but the task is not: it can be run or followed from here."""
        self._running.pop(task.id, None)

    def _spawn(self, task: Task, work: Coroutine[Any, Any, None]) -> None:
        run = asyncio.get_running_loop().create_task(self._guarded(task, work))
        self._running[task.id] = run
        run.add_done_callback(lambda done: self._ended(task.id, done))

    def _ended(self, task_id: str, done: asyncio.Task[None]) -> None:
        if self._running.get(task_id) is done:
            del self._running[task_id]
            self._forget(task_id)

    def _changed(self, task: Task) -> None:
        if task.state.is_terminal and task.id not in self._running:
            self._forget(task.id)

    def _forget(self, task_id: str) -> None:
        known = self._conversations.pop(task_id, None)
        if known is not None:
            self._unpin(known.key.session)

    def _unpin(self, session: str) -> None:
        self._in_use[session] -= 1
        if self._in_use[session] > 0:
            return
        del self._in_use[session]
        if session and self.on_idle is not None and not self.closing:
            self._in_background(self.on_idle(session))

    async def _guarded(self, task: Task, work: Coroutine[Any, Any, None]) -> None:
        """Around one task run: whatever breaks is told to the one who waits for the task, and to the log."""
        try:
            await work
        except TaskgateError as problem:
            log.error("task run could not be recorded", task=task.id, why=problem.message)
        except Exception as fault:  # one task run: nobody else would ever end the task
            log.error("task run failed", task=task.id, exc_info=fault)
            current = await self._desk.store.get(task.id) or task
            executed = Executed.MAYBE if current.may_have_been_sent else Executed.NO
            text = "Something went wrong inside the gateway while running this task; its log says more."
            await self._desk.conclude(
                task.id, endings.by_error(task, GatewayFault("internal", text, executed=executed))
            )

    # Ending

    async def cancel(self, task: Task) -> None:
        """Stop the run; the link tells the upstream as its generation wants it told. Nobody waits for an upstream's reply."""
        conversation = self._conversation(task)
        self._in_use[conversation.key.session] += 1
        running = self._running.get(task.id)
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        else:
            self._forget(task.id)
        self._in_background(self._tell_cancelled(task, conversation))

    async def _tell_cancelled(self, task: Task, conversation: Conversation) -> None:
        upstream = self._upstreams().get(task.server)
        try:
            if task.upstream_handle is not None and upstream is not None:
                await self._attempts.following.cancel_upstream(task, upstream, conversation)
            if task.cancel_owed:
                await self._desk.store.told_upstream(task.id)
        finally:
            self._unpin(conversation.key.session)

    def _in_background(self, courtesy: Awaitable[None]) -> None:
        doing = asyncio.get_running_loop().create_task(self._politely(courtesy))
        self._courtesies.add(doing)
        doing.add_done_callback(self._courtesies.discard)

    async def _politely(self, courtesy: Awaitable[None]) -> None:
        try:
            await courtesy
        except TaskgateError as problem:
            log.info("an upstream could not be told", why=problem.message)

    async def settle(self, timeout_s: float) -> None:
        """At shutdown: let calls end that are out and could not be taken up again. Everything else can wait for the next start."""
        waiting = []
        for task_id, run in list(self._running.items()):
            task = await self._desk.store.get(task_id)
            sent = task is not None and task.may_have_been_sent and not task.state.is_terminal
            if task is not None and sent and task.upstream_handle is None and not task.tool_class.may_repeat:
                waiting.append(run)
        if waiting:
            log.info("waiting for calls that may not be repeated", count=len(waiting), seconds=timeout_s)
            await asyncio.wait(waiting, timeout=timeout_s)

    async def close(self) -> None:
        """Stop running without ending the tasks: the next start finds them in the store."""
        self.closing = True
        running = [*self._running.values(), *self._courtesies]
        for run in running:
            run.cancel()
        await asyncio.gather(*running, return_exceptions=True)
