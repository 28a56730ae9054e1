"""What the next owner does with what it finds, and what time does to tasks: recovery, deadlines, retention.

The table of what to do is `core.tasks.recovery`; here it is carried out. Nothing that may have reached a tool is sent again unless
its class allows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypeAlias, assert_never

from taskgate import clock
from taskgate.core.errors import CallerError, Executed, GatewayFault, UpstreamError
from taskgate.core.tasks import endings, recovery
from taskgate.core.tasks.recovery import Action
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import RunOn, Task
from taskgate.core.tasks.transition import ApprovalExpired, InputSettled
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.outlet import CancelNote
from taskgate.telemetry.logs import log

PAGE: Final = 500
CLAIM_SHOWS_S: Final = 30.0
"""Whether a claim whose answer was lost has been committed is known by then."""

_Ending: TypeAlias = Literal[
    Action.LEAVE_TO_A_PERSON,
    Action.EXPIRE_APPROVAL,
    Action.REPORT_UNKNOWN,
    Action.REPORT_FAILED,
    Action.WITHDRAW_THEN_REPORT_UNKNOWN,
    Action.WITHDRAW_THEN_REPORT_FAILED,
    Action.TELL_UPSTREAM_CANCELLED,
]


class Recovery:
    def __init__(self, records: TaskRecords, runs: Runs, approval_due: Callable[[str], Awaitable[None]]) -> None:
        """`approval_due` carries out what the end of an approval's time means."""
        self._records = records
        self._runs = runs
        self._approval_due = approval_due
        self._look_at: float | None = None
        """When to look for tasks that were claimed although nobody was told so."""

    async def take_over(self) -> int:
        """At start: every open task of an owner that is gone is classified and moved on."""
        store, began = self._records.store, clock.monotonic()
        while await store.claim():
            pass
        if store.is_restored:
            log.warning(
                "the store is older than when it was last written, as after a restored backup: calls that may run only once "
                "are not run, and say so"
            )
        count, after = 0, ""
        while tasks := await store.claimed(after, PAGE):
            # Together, so that the writes of a whole page share their commits.
            await asyncio.gather(*(self._move_on(task) for task in tasks))
            count, after = count + len(tasks), tasks[-1].id
        if store.is_restored:
            await store.accept_restored()
        self._records.recount(await store.open_count())
        if count:
            log.info("tasks recovered", count=count, seconds=round(clock.monotonic() - began, 3))
        return count

    async def take_over_dead(self) -> int:
        """While we run: another gateway on this store has died. Only what is claimed now is moved on."""
        count = 0
        while claimed := await self._claimed():
            found = await asyncio.gather(*(self._records.current(task_id) for task_id in claimed))
            await asyncio.gather(*(self._move_on(task) for task in found if task is not None))
            count += len(claimed)
        if count:
            log.warning("tasks of a gateway that died were taken over", count=count)
        return count

    async def _claimed(self) -> tuple[str, ...]:
        try:
            return await self._records.store.claim()
        except GatewayFault:
            self._look_at = clock.monotonic() + CLAIM_SHOWS_S
            raise

    async def pick_up(self) -> None:
        """Tasks of ours that nobody runs: their run ended, or their claim was answered, while the store was in trouble."""
        store, runs = self._records.store, self._runs
        for task_id in tuple(runs.left):
            task = await store.get(task_id)
            runs.left.discard(task_id)
            if task is not None and task.owner == store.ownership.owner and not runs.is_running(task_id):
                await self._move_on(task)
        if self._look_at is None or clock.monotonic() < self._look_at:
            return
        after, untouched_ms = "", store.now_ms() - int(CLAIM_SHOWS_S * 1000)
        while tasks := await store.claimed(after, PAGE):
            idle = [task for task in tasks if task.updated_ms < untouched_ms and not runs.is_running(task.id)]
            await asyncio.gather(*(self._move_on(task) for task in idle))
            after = tasks[-1].id
        self._look_at = None

    async def _move_on(self, task: Task) -> None:
        store = self._records.store
        action = recovery.next_action(task, store.now_ms(), restored=store.is_restored)
        match action:
            case Action.RUN | Action.RESEND:
                self._runs.start(task)
            case Action.RECHECK_THEN_RUN:
                if task.run_on is RunOn.ONCE_ALLOWED:
                    self._runs.start(task)
            case Action.POLL_UPSTREAM:
                # A question that a stateful upstream had put died with its connection; it asks again if it wants to.
                self._runs.follow(await self._withdrawn(task))
            case Action.WITHDRAW_THEN_RESEND:
                self._runs.start(await self._withdrawn(task))
            case Action.KEEP_WAITING_FOR_INPUT:
                if task.upstream_handle is not None:
                    self._runs.follow(task)
                else:
                    self._runs.go_on(task)
            case Action.KEEP_WAITING_FOR_APPROVAL | Action.NOTHING:
                return
            case _:
                await self._end(task, action)

    async def _end(self, task: Task, action: _Ending) -> None:
        match action:
            case Action.LEAVE_TO_A_PERSON:
                await self._records.conclude(task.id, endings.restored(task))
            case Action.EXPIRE_APPROVAL:
                await self.expire(task)
            case Action.REPORT_UNKNOWN | Action.REPORT_FAILED:
                await self._records.conclude(task.id, endings.lost(task, _lost(task)))
            case Action.WITHDRAW_THEN_REPORT_UNKNOWN | Action.WITHDRAW_THEN_REPORT_FAILED:
                await self._records.conclude(task.id, endings.lost(await self._withdrawn(task), _lost(task)))
            case Action.TELL_UPSTREAM_CANCELLED:
                await self._runs.cancel(task, CancelNote())
            case _:
                assert_never(action)

    async def _withdrawn(self, task: Task) -> Task:
        if not task.question_keys:
            return task
        return await self._records.conclude(task.id, InputSettled(task.question_keys)) or task

    async def expire(self, task: Task) -> None:
        if task.approval_id is not None:
            await self._approval_due(task.approval_id)
            return
        text = "Nobody approved this call in time. The tool was not run."
        if task.state is TaskState.APPROVED:
            text = "The approval of this call was not used in time. The tool was not run."
        error = endings.by_error(task, CallerError("approval_expired", text)).error
        await self._records.conclude(task.id, ApprovalExpired(error, text))

    async def enforce_clocks(self) -> None:
        """Deadlines are facts in the store; this only carries out what they say."""
        due = await self._records.store.due(PAGE)
        for task_id in due.approvals:
            task = await self._records.store.get(task_id)
            if task is not None:
                await self.expire(task)
        for approval_id in due.holds:
            await self._approval_due(approval_id)
        ours = self._records.store.ownership.owner
        for task_id in due.executions:
            task = await self._records.store.get(task_id)
            if task is not None and not task.state.is_terminal and task.owner == ours:
                ended = await self._records.advance(task_id, endings.past_deadline(task))
                await self._runs.cancel(ended or task, CancelNote())

    async def sweep(self) -> None:
        for _ in range(20):
            swept = await self._records.store.sweep()
            for task in swept.expired:
                self._records.changes.expired(task)
            if not swept.tasks and not swept.events and not swept.approvals:
                return


def _lost(task: Task) -> UpstreamError:
    return UpstreamError("upstream_unreachable", f"Contact with {task.server} was lost.", executed=Executed.MAYBE)
