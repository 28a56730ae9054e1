"""What the next owner does with the tasks that it finds, and what deadlines do to tasks.

The table of what to do is `core.tasks.endings`; here it is carried out. Nothing that may have reached a tool is sent again unless
its class allows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Literal, TypeAlias, assert_never

from taskgate import clock
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.tasks import endings
from taskgate.core.tasks.recovery import RecoveryAction, contact_lost, ends_at_once, next_action
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import RunOn, Task
from taskgate.core.tasks.transition import ApprovalExpired, InputSettled, TransitionEvent
from taskgate.gateway.tasks.deadlines import TaskDeadlines
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.outlet import CancelNote
from taskgate.ports.store_answers import Recovered
from taskgate.telemetry.logs import log
from taskgate.turns import let_others_run

PAGE: Final = 500
AT_ONCE: Final = 100
"""So many tasks are moved on together, so that their writes share a transaction."""
CLAIM_SHOWS_S: Final = 30.0
"""Whether a claim whose answer was lost has been committed is known by then."""

_Ending: TypeAlias = Literal[
    RecoveryAction.LEAVE_TO_A_PERSON,
    RecoveryAction.EXPIRE_APPROVAL,
    RecoveryAction.REPORT_UNKNOWN,
    RecoveryAction.REPORT_FAILED,
    RecoveryAction.WITHDRAW_THEN_REPORT_UNKNOWN,
    RecoveryAction.WITHDRAW_THEN_REPORT_FAILED,
    RecoveryAction.TELL_UPSTREAM_CANCELLED,
]


class Recovery:
    def __init__(
        self,
        records: TaskRecords,
        runs: Runs,
        deadlines: TaskDeadlines,
        approval_due: Callable[[str], Awaitable[None]],
        approvals_over: Callable[[], Iterable[str]],
    ) -> None:
        """`approval_due` carries out what the end of an approval's time means; `approvals_over` are those whose time has passed
        by the monotonic clock."""
        self._records = records
        self._runs = runs
        self._deadlines = deadlines
        self._approval_due = approval_due
        self._approvals_over = approvals_over
        self._to_go_on: list[str] = []
        self._look_at: float | None = None
        """When to look for tasks that were claimed although nobody was told so."""

    async def take_over(self) -> int:
        """At start, before anything is served: every open task of an owner that is gone becomes ours. What can only be ended is
        ended; the rest is moved on by `go_on`."""
        store, began = self._records.store, clock.monotonic()
        while await store.claim():
            pass
        if store.is_restored:
            log.warning(
                "the store was restored from a backup: calls that may run only once, and calls that wait for an approval, are not "
                "run; their outcome is unknown"
            )
        count, after = 0, ""
        while (page := await store.recover(self.decide, after)).last:
            self._ended(page)
            self._to_go_on.extend(task.id for task in page.left)
            count, after = count + len(page.ended) + len(page.left), page.last
        if store.is_restored:
            voided = await store.accept_restored()
            log.warning(
                "grants, unspent approvals and logins of the restored store are void",
                grants=voided.grants,
                approvals=voided.approvals,
                logins=voided.logins,
            )
        self._records.recount(await store.open_count())
        if count:
            log.info("tasks recovered", count=count, seconds=round(clock.monotonic() - began, 3))
        return count

    async def go_on(self) -> None:
        """Run, follow or wait for what the start has taken over, some at a time beside the calls that come."""
        ids, self._to_go_on = self._to_go_on, []
        try:
            await self._move_all_on(ids)
        except GatewayFault as fault:
            log.warning("store in trouble; tasks that were taken over are tried again", why=fault.message)

    async def take_over_dead(self) -> int:
        """While we run: another gateway on this store has died. Only what is claimed now is moved on."""
        count = 0
        while claimed := await self._claimed():
            await self._move_all_on(claimed)
            count += len(claimed)
        if count:
            log.warning("tasks of a gateway that died were taken over", count=count)
        return count

    async def _move_all_on(self, ids: Sequence[str]) -> None:
        """Some at a time. What cannot be read or written now is left to the next `pick_up`: no other gateway looks for it."""
        for start in range(0, len(ids), AT_ONCE):
            try:
                await self._move_some_on(ids[start : start + AT_ONCE])
            except Exception:
                self._runs.left.update(ids[start:])
                raise
            await let_others_run()

    async def _move_some_on(self, ids: Sequence[str]) -> None:
        # A task that was claimed may be one that we run: nobody had claimed it, or its caller asked for it meanwhile.
        idle = [task_id for task_id in ids if not self._runs.is_running(task_id)]
        page = await self._records.store.recover_these(self.decide, idle)
        self._ended(page)
        left = [task for task in page.left if not self._runs.is_running(task.id)]
        moved = await asyncio.gather(*map(self._move_on, left), return_exceptions=True)
        for task, fault in zip(left, moved, strict=True):
            if isinstance(fault, Exception):  # one task of many: it is tried again in the next round
                log.error("task could not be picked up; it will be tried again", task=task.id, exc_info=fault)
                self._runs.left.add(task.id)

    def decide(self, task: Task, now_ms: int) -> TransitionEvent | None:
        """Called inside the transaction: a run that began since the task was chosen goes on."""
        if self._runs.is_running(task.id):
            return None
        return ends_at_once(task, now_ms, restored=self._records.store.is_restored)

    def _ended(self, page: Recovered) -> None:
        for task in page.ended:
            self._records.moved(task)

    async def _claimed(self) -> tuple[str, ...]:
        try:
            return await self._records.store.claim()
        except GatewayFault:
            self._look_at = clock.monotonic() + CLAIM_SHOWS_S
            raise

    async def pick_up(self) -> None:
        """Tasks of ours that nobody runs: their run ended, or their claim was answered, while the store was in trouble."""
        store, runs = self._records.store, self._runs
        left = sorted(runs.left)
        runs.left.difference_update(left)
        await self._move_all_on(left)
        if self._look_at is None or clock.monotonic() < self._look_at:
            return
        after, untouched_ms = "", store.now_ms() - int(CLAIM_SHOWS_S * 1000)
        while tasks := await store.claimed(after, AT_ONCE):
            await self._move_all_on([task.id for task in tasks if task.updated_ms < untouched_ms])
            after = tasks[-1].id
        self._look_at = None

    async def _move_on(self, task: Task) -> None:
        store = self._records.store
        self._deadlines.note(task)
        action = next_action(task, store.now_ms(), restored=store.is_restored)
        match action:
            case RecoveryAction.RUN | RecoveryAction.RESEND:
                self._runs.start(task)
            case RecoveryAction.RECHECK_THEN_RUN:
                if task.run_on is RunOn.ONCE_ALLOWED:
                    self._runs.start(task)
            case RecoveryAction.POLL_UPSTREAM:
                # A question that a stateful upstream had put died with its connection; it asks again if it wants to.
                self._runs.follow(await self._withdrawn(task))
            case RecoveryAction.WITHDRAW_THEN_RESEND:
                self._runs.start(await self._withdrawn(task))
            case RecoveryAction.KEEP_WAITING_FOR_INPUT:
                if task.upstream_handle is not None:
                    self._runs.follow(task)
                else:
                    self._runs.go_on(task)
            case RecoveryAction.KEEP_WAITING_FOR_APPROVAL | RecoveryAction.NOTHING:
                return
            case _:
                await self._end(task, action)

    async def _end(self, task: Task, action: _Ending) -> None:
        match action:
            case RecoveryAction.EXPIRE_APPROVAL:
                await self.expire(task)
            case RecoveryAction.WITHDRAW_THEN_REPORT_UNKNOWN | RecoveryAction.WITHDRAW_THEN_REPORT_FAILED:
                await self._records.conclude(task.id, contact_lost(await self._withdrawn(task)))
            case RecoveryAction.LEAVE_TO_A_PERSON | RecoveryAction.REPORT_UNKNOWN | RecoveryAction.REPORT_FAILED:
                # Its state has changed since it was read; what is due now is decided again with the next look.
                self._runs.left.add(task.id)
            case RecoveryAction.TELL_UPSTREAM_CANCELLED:
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
        """Carry out what has come to its end: runs of ours by the monotonic clock, approvals by whichever clock is first."""
        due = await self._records.store.due(PAGE)
        for approval_id in self._approvals_over():
            await self._approval_due(approval_id)
        for task_id in due.approvals:
            task = await self._records.store.get(task_id)
            if task is not None:
                await self.expire(task)
        for approval_id in due.holds:
            await self._approval_due(approval_id)
        for task_id in due.executions:
            task = await self._records.store.get(task_id) if task_id not in self._deadlines else None
            if task is not None:
                self._deadlines.note(task)
        ours = self._records.store.ownership.owner
        for task_id in self._deadlines.over():
            task = await self._records.store.get(task_id)
            if task is None or task.state.is_terminal or task.owner != ours:
                self._deadlines.forget(task_id)
                continue
            ended = await self._records.advance(task_id, endings.past_deadline(task))
            await self._runs.cancel(ended or task, CancelNote())
