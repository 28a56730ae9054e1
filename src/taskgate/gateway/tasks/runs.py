"""Run each task once, however many requests wait for it.

This module knows which tasks run in this process, in which asyncio task, and over which conversation. `attempts` performs a run,
`recovery` continues runs after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any, Final

from taskgate.core.errors import Executed, GatewayFault, TaskgateError
from taskgate.core.tasks import endings
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.gateway.events import EventHub, ScriptCancelled, ScriptDue, TaskChanged
from taskgate.gateway.plan import Live
from taskgate.gateway.tasks.attempts import Attempts
from taskgate.gateway.tasks.conversation import Conversation, Conversations
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.cancel_note import CancelNote
from taskgate.ports.upstream import Upstream
from taskgate.ports.upstream_call import SendLog
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.tasks import CancelDelivered, TakeTask
from taskgate.telemetry.logs import log
from taskgate.turns import let_others_run

READS_PER_TURN: Final = 50
"""A read from the store takes about 30 microseconds, and thousands of tasks may be running."""


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
        self.interrupted: set[str] = set()
        """Tasks whose run ended because the store failed. `recovery` runs them again."""
        self._records = records
        self._attempts = attempts
        self._conversations = conversations
        self._upstreams = upstreams
        self._events = events
        self._running: dict[str, asyncio.Task[None]] = {}
        self._notifying: set[asyncio.Task[None]] = set()
        events.subscribe(TaskChanged, self._changed)

    def __len__(self) -> int:
        return len(self._running)

    def is_running(self, task_id: str) -> bool:
        return task_id in self._running

    @property
    def running_ids(self) -> frozenset[str]:
        return frozenset(self._running)

    def start(self, task: Task) -> None:
        """Run the task unless it is running: concurrent requests share one execution."""
        if task.script:
            self._events.publish(ScriptDue(task))
        elif task.id not in self._running:
            self._spawn(task, self._execute(task))

    async def _execute(self, task: Task) -> None:
        """Take over an idle task of another gateway first, because its caller is connected here."""
        ours = self._records.store.ownership.owner
        taken = task if task.owner == ours else await self._records.store.do(TakeTask(task.id))
        if taken is not None:
            await self._attempts.execute(taken, self._conversations.of(taken))

    def follow(self, task: Task) -> None:
        """Wait for the task that the server created. The call is never sent again."""
        if task.id not in self._running:
            self._spawn(task, self._attempts.follow(task, self._conversations.of(task)))

    def resume(self, task: Task) -> None:
        """Ask the open questions of the server again, then continue the same call."""
        if task.id not in self._running:
            self._spawn(task, self._attempts.execute(task, self._conversations.of(task)))

    def adopt(self, task: Task, work: asyncio.Task[None], sent_as: SendLog) -> None:
        """Register a promoted call that is running already, so that it can be cancelled. It counts as a run of its server, and
        its connection no longer as one of a plain call.
        """
        self._running[task.id] = work
        work.add_done_callback(lambda done: self._ended(task.id, done))
        slot = self._attempts.queue.slot(task)
        slot.take_beyond_limit()
        work.add_done_callback(lambda _: slot.give_back())
        upstream = self._upstreams.value.get(task.server)
        if upstream is not None:
            upstream.mark_long_lived(sent_as)

    def release(self, task: Task) -> None:
        """The coroutine that carried a promoted call has ended, but the task has not: it can be run or followed from here."""
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
        """Log a failed run and end its task."""
        try:
            await work
        except TaskgateError as problem:
            log.error("task run could not be recorded", task=task.id, why=problem.message)
            self.interrupted.add(task.id)
        except Exception as fault:  # one task run: nothing else would end the task
            log.error("task run failed", task=task.id, exc_info=fault)
            await self.fail_internal(task)

    async def fail_internal(self, task: Task) -> None:
        """End a task whose run failed for a reason that is not the server's."""
        text = "Internal error of the gateway while running this task. Its log has the details."
        try:
            current = await self._records.current(task.id) or task
            executed = Executed.MAYBE if current.may_have_been_sent else Executed.NO
            await self._records.conclude(
                task.id, endings.by_error(task, GatewayFault("internal", text, executed=executed))
            )
        except Exception as fault:  # one task run: its failure may also prevent storing its end
            log.error("task run could not be ended; this is retried", task=task.id, exc_info=fault)
            self.interrupted.add(task.id)

    def abandon(self, task_id: str) -> None:
        """Stop a run whose task another gateway has taken over. Its result would be refused, and its answers would never
        arrive.
        """
        running = self._running.get(task_id)
        if running is not None:
            log.warning("a run was stopped because another gateway has taken over its task", task=task_id)
            running.cancel()

    def stop_sending(self) -> None:
        """At shutdown: leave tasks that were not sent to the next start."""
        self._attempts.stop_sending()

    async def cancel(self, task: Task, why: CancelNote) -> None:
        """Stop the run. The link notifies the server as its generation requires, and its reply is not awaited."""
        if task.script:
            self._conversations.forget(task.id)
            self._events.publish(ScriptCancelled(task))
            return
        conversation = self._conversations.of(task)
        self._conversations.hold(conversation)
        running = self._running.get(task.id)
        if running is not None:
            running.cancel(why)
            await asyncio.gather(running, return_exceptions=True)
        else:
            self._conversations.forget(task.id)
        self._in_background(self._notify_cancelled(task, conversation))

    async def _notify_cancelled(self, task: Task, conversation: Conversation) -> None:
        upstream = self._upstreams.value.get(task.server)
        try:
            if task.upstream_handle is not None and upstream is not None:
                await self._attempts.following.cancel_upstream(task, upstream, conversation)
            if task.cancel_unsent:
                await self._records.store.do(CancelDelivered(task.id))
        finally:
            self._conversations.release(conversation)

    def _in_background(self, notification: Awaitable[None]) -> None:
        doing = asyncio.get_running_loop().create_task(self._log_failure(notification))
        self._notifying.add(doing)
        doing.add_done_callback(self._notifying.discard)

    async def _log_failure(self, notification: Awaitable[None]) -> None:
        try:
            await notification
        except TaskgateError as problem:
            log.info("notification of a server failed", why=problem.message)

    async def settle(self, timeout_s: float) -> None:
        """At shutdown: wait for calls in flight, except those that their server runs as tasks. The rest is left to the next
        start.
        """
        waiting = []
        for number, (task_id, run) in enumerate(list(self._running.items()), 1):
            if number % READS_PER_TURN == 0:
                await let_others_run()
            task = await self._records.store.ask(FindTask(task_id))
            sent = task is not None and task.may_have_been_sent and not task.state.is_terminal
            if (
                task is not None
                and sent
                and task.upstream_handle is None
                and task.state is not TaskState.INPUT_REQUIRED
            ):
                waiting.append(run)
        if waiting:
            log.info("waiting for calls in flight", count=len(waiting), seconds=timeout_s)
            await asyncio.wait(waiting, timeout=timeout_s)

    async def close(self) -> None:
        """Stop all runs without ending their tasks: the next start finds them in the store."""
        self.closing = True
        running = [*self._running.values(), *self._notifying]
        for run in running:
            run.cancel()
        await asyncio.gather(*running, return_exceptions=True)
