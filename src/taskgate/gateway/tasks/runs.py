"""Running tasks: one execution each, whoever asks for it and however often.

Knows which tasks are being run in this process, by whom, and over which conversation. How a run goes is in `attempts`; what
must happen after a crash is in `recover`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any, Final

from taskgate.core.errors import Executed, GatewayFault, TaskgateError
from taskgate.core.tasks import endings
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.gateway.events import EventHub, TaskChanged
from taskgate.gateway.plan import Live
from taskgate.gateway.tasks.attempts import Attempts
from taskgate.gateway.tasks.conversation import Conversation, Conversations
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.outlet import CancelNote
from taskgate.ports.upstream import SendLog, Upstream
from taskgate.telemetry.logs import log
from taskgate.turns import let_others_run

LOOKS_IN_A_TURN: Final = 50
"""A look into the store takes some 30 microseconds, and thousands of tasks may be running."""


class Runs:
    def __init__(
        self,
        records: TaskRecords,
        attempts: Attempts,
        conversations: Conversations,
        upstreams: Live[Mapping[str, Upstream]],
        events: EventHub,
    ) -> None:
        self.closing = False
        self.left: set[str] = set()
        """Tasks whose run ended because the store could not be used: they need another one; see `recover`."""
        self._records = records
        self._attempts = attempts
        self._conversations = conversations
        self._upstreams = upstreams
        self._running: dict[str, asyncio.Task[None]] = {}
        self._courtesies: set[asyncio.Task[None]] = set()
        events.subscribe(TaskChanged, self._changed)

    def __len__(self) -> int:
        return len(self._running)

    # Running

    def is_running(self, task_id: str) -> bool:
        return task_id in self._running

    @property
    def running_ids(self) -> frozenset[str]:
        return frozenset(self._running)

    def start(self, task: Task) -> None:
        """Run it, unless it is running already: concurrent readers share one execution."""
        if task.id not in self._running:
            self._spawn(task, self._execute(task))

    async def _execute(self, task: Task) -> None:
        """A task of another gateway that nobody has begun becomes ours first, because its caller came here."""
        ours = self._records.store.ownership.owner
        taken = task if task.owner == ours else await self._records.store.take(task.id)
        if taken is not None:
            await self._attempts.execute(taken, self._conversations.of(taken))

    def follow(self, task: Task) -> None:
        """Its upstream made a task of it: wait for that one, never send again."""
        if task.id not in self._running:
            self._spawn(task, self._attempts.follow(task, self._conversations.of(task)))

    def go_on(self, task: Task) -> None:
        """Its upstream waits for answers: put the questions again, then continue the same call."""
        if task.id not in self._running:
            self._spawn(task, self._attempts.execute(task, self._conversations.of(task)))

    def adopt(self, task: Task, work: asyncio.Task[None], sent_as: SendLog) -> None:
        """A promoted call is already being carried by someone; remember who, so that it can be cancelled. It counts among the
        runs of its server, and its connection no longer among those of plain calls.
        """
        self._running[task.id] = work
        work.add_done_callback(lambda done: self._ended(task.id, done))
        turn = self._attempts.queue.turn(task)
        turn.take_at_once()
        work.add_done_callback(lambda _: turn.give_back())
        upstream = self._upstreams.value.get(task.server)
        if upstream is not None:
            upstream.mark_long_lived(sent_as)

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
            self._conversations.forget(task_id)

    def _changed(self, event: TaskChanged) -> None:
        task = event.task
        if task.state.is_terminal and task.id not in self._running:
            self._conversations.forget(task.id)

    async def _guarded(self, task: Task, work: Coroutine[Any, Any, None]) -> None:
        """Around one task run: whatever breaks is told to the one who waits for the task, and to the log."""
        try:
            await work
        except TaskgateError as problem:
            log.error("task run could not be recorded", task=task.id, why=problem.message)
            self.left.add(task.id)
        except Exception as fault:  # one task run: nobody else would ever end the task
            log.error("task run failed", task=task.id, exc_info=fault)
            await self._end_broken(task)

    async def _end_broken(self, task: Task) -> None:
        text = "Something went wrong inside the gateway while running this task; its log says more."
        try:
            current = await self._records.current(task.id) or task
            executed = Executed.MAYBE if current.may_have_been_sent else Executed.NO
            await self._records.conclude(
                task.id, endings.by_error(task, GatewayFault("internal", text, executed=executed))
            )
        except Exception as fault:  # one task run: what broke it may stand in the way of its end, too
            log.error("task run could not be ended; it will be tried again", task=task.id, exc_info=fault)
            self.left.add(task.id)

    # Ending

    def let_go(self, task_id: str) -> None:
        """Another gateway runs the task now, because we were taken for dead: whatever came of our run would be refused, and what
        it waits for would never come."""
        running = self._running.get(task_id)
        if running is not None:
            log.warning("a run was left to the gateway that has taken over the task", task=task_id)
            running.cancel()

    def stop_sending(self) -> None:
        """The gateway is going down: tasks that were not sent are left to the next start."""
        self._attempts.stop_sending()

    async def cancel(self, task: Task, why: CancelNote) -> None:
        """Stop the run; the link tells the upstream as its generation wants it told. Nobody waits for an upstream's reply."""
        conversation = self._conversations.of(task)
        self._conversations.hold(conversation)
        running = self._running.get(task.id)
        if running is not None:
            running.cancel(why)
            await asyncio.gather(running, return_exceptions=True)
        else:
            self._conversations.forget(task.id)
        self._in_background(self._tell_cancelled(task, conversation))

    async def _tell_cancelled(self, task: Task, conversation: Conversation) -> None:
        upstream = self._upstreams.value.get(task.server)
        try:
            if task.upstream_handle is not None and upstream is not None:
                await self._attempts.following.cancel_upstream(task, upstream, conversation)
            if task.cancel_owed:
                await self._records.store.told_upstream(task.id)
        finally:
            self._conversations.let_go(conversation)

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
        """At shutdown: let calls end that are out, unless their upstream keeps them as tasks. The rest waits for the next start."""
        waiting = []
        for number, (task_id, run) in enumerate(list(self._running.items()), 1):
            if number % LOOKS_IN_A_TURN == 0:
                await let_others_run()
            task = await self._records.store.get(task_id)
            sent = task is not None and task.may_have_been_sent and not task.state.is_terminal
            if (
                task is not None
                and sent
                and task.upstream_handle is None
                and task.state is not TaskState.INPUT_REQUIRED
            ):
                waiting.append(run)
        if waiting:
            log.info("waiting for calls that are under way", count=len(waiting), seconds=timeout_s)
            await asyncio.wait(waiting, timeout=timeout_s)

    async def close(self) -> None:
        """Stop running without ending the tasks: the next start finds them in the store."""
        self.closing = True
        running = [*self._running.values(), *self._courtesies]
        for run in running:
            run.cancel()
        await asyncio.gather(*running, return_exceptions=True)
