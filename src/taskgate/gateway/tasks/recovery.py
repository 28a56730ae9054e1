"""Continue or end tasks after a restart or a takeover.

`core.tasks.endings` decides what to do with a task; this module does it. A call that may have reached its tool is sent again
only if the class of the tool allows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias, assert_never

from taskgate import clock
from taskgate.core.errors import GatewayFault
from taskgate.core.tasks.recovery import RecoveryAction, contact_lost, ends_at_once, next_action
from taskgate.core.tasks.task import RunOn, Task
from taskgate.core.tasks.transition import InputSettled, TransitionEvent
from taskgate.gateway.tasks.deadline_enforcement import DeadlineEnforcement
from taskgate.gateway.tasks.deadlines import TaskDeadlines
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.cancel_note import CancelNote
from taskgate.ports.store_answers import Recovered
from taskgate.store.operations.restored import AcceptRestored
from taskgate.store.operations.task_queries import OpenTasks
from taskgate.store.operations.upkeep import Claim, ClaimedTasks, Recover, recover
from taskgate.telemetry.logs import log
from taskgate.turns import let_others_run

BATCH: Final = 200
"""This many tasks are continued together, so that their writes share a transaction."""
STARTS_PER_TURN: Final = 50
"""This many runs are started in one iteration of the event loop."""
CLAIM_SETTLES_S: Final = 30.0
"""After this time it is certain whether a claim whose reply was lost has been committed."""

_EndingAction: TypeAlias = Literal[
    RecoveryAction.LEAVE_TO_A_PERSON,
    RecoveryAction.EXPIRE_APPROVAL,
    RecoveryAction.REPORT_UNKNOWN,
    RecoveryAction.REPORT_FAILED,
    RecoveryAction.WITHDRAW_THEN_REPORT_UNKNOWN,
    RecoveryAction.WITHDRAW_THEN_REPORT_FAILED,
    RecoveryAction.CANCEL_UPSTREAM,
]


class Recovery:
    def __init__(
        self,
        records: TaskRecords,
        runs: Runs,
        deadlines: TaskDeadlines,
        enforcement: DeadlineEnforcement,
    ) -> None:
        self._records = records
        self._runs = runs
        self._deadlines = deadlines
        self._enforcement = enforcement
        self._taken_over: list[str] = []
        self._check_claims_at: float | None = None
        """When to look for tasks whose claim was committed although its reply was lost."""

    async def take_over(self) -> int:
        """At start, before anything is served: claim all open tasks of owners that are gone, and end those that cannot
        continue. `resume_taken_over` continues the rest.
        """
        store, began = self._records.store, clock.monotonic()
        while await store.do(Claim()):
            pass
        if store.state.restore.is_restored:
            log.warning(
                "the store was restored from a backup: calls that may run only once, and calls that wait for an approval, are not "
                "run; their outcome is unknown"
            )
        count, after = 0, ""
        while (page := await recover(store, self.decide, after)).last:
            self._announce_ended(page)
            self._taken_over.extend(task.id for task in page.left)
            count, after = count + len(page.ended) + len(page.left), page.last
        if store.state.restore.is_restored:
            voided = await store.do(AcceptRestored())
            log.warning(
                "grants, unspent approvals and logins of the restored store are void",
                grants=voided.grants,
                approvals=voided.approvals,
                logins=voided.logins,
            )
        self._records.set_open_tasks(await store.ask(OpenTasks()))
        if count:
            log.info("tasks recovered", count=count, seconds=round(clock.monotonic() - began, 3))
        return count

    async def resume_taken_over(self) -> None:
        """Run, follow or wait for the tasks that were taken over at start, in batches and concurrently with incoming calls."""
        ids, self._taken_over = self._taken_over, []
        try:
            await self._continue_all(ids)
        except GatewayFault as fault:
            log.warning("the store failed; tasks that were taken over are retried", why=fault.message)

    async def take_over_dead(self) -> int:
        """While running: claim and continue the tasks of another gateway that has died."""
        count = 0
        while claimed := await self._claimed():
            await self._continue_all(claimed)
            count += len(claimed)
        if count:
            log.warning("tasks of a gateway that died were taken over", count=count)
        return count

    async def continue_handed_over(self, task_id: str) -> None:
        """While running: continue a task of which another gateway has made this one the owner."""
        await self._continue_all([task_id])

    async def _continue_all(self, ids: Sequence[str]) -> None:
        """Continue tasks in batches. Tasks that cannot be read or written now are left to `resume_interrupted`: no other
        gateway looks for them.
        """
        for start in range(0, len(ids), BATCH):
            try:
                await self._continue_some(ids[start : start + BATCH])
            except Exception:
                self._runs.interrupted.update(ids[start:])
                raise
            await let_others_run()

    async def _continue_some(self, ids: Sequence[str]) -> None:
        # A claimed task may be running here already: it had no owner, or its caller requested it meanwhile.
        idle = [task_id for task_id in ids if not self._runs.is_running(task_id)]
        page = await self._records.store.do(Recover(self.decide, idle))
        self._announce_ended(page)
        left = [task for task in page.left if not self._runs.is_running(task.id)]
        for start in range(0, len(left), STARTS_PER_TURN):
            await self._start_runs(left[start : start + STARTS_PER_TURN])

    async def _start_runs(self, tasks: Sequence[Task]) -> None:
        moved = await asyncio.gather(*map(self._continue, tasks), return_exceptions=True)
        for task, fault in zip(tasks, moved, strict=True):
            if isinstance(fault, Exception):  # one task of many: the next round retries it
                log.error("task could not be continued; this is retried", task=task.id, exc_info=fault)
                self._runs.interrupted.add(task.id)

    def decide(self, task: Task, now_ms: int) -> TransitionEvent | None:
        """Called inside the transaction. A run that began after the task was selected continues."""
        if self._runs.is_running(task.id):
            return None
        return ends_at_once(task, now_ms, restored=self._records.store.state.restore.is_restored)

    def _announce_ended(self, page: Recovered) -> None:
        for task in page.ended:
            self._records.announce(task)

    async def _claimed(self) -> tuple[str, ...]:
        try:
            return await self._records.store.do(Claim())
        except GatewayFault:
            self._check_claims_at = clock.monotonic() + CLAIM_SETTLES_S
            raise

    async def resume_interrupted(self) -> None:
        """Continue tasks of this gateway that are not running: their run ended, or their claim was answered, while the store
        failed.
        """
        store, runs = self._records.store, self._runs
        left = sorted(runs.interrupted)
        runs.interrupted.difference_update(left)
        await self._continue_all(left)
        if self._check_claims_at is None or clock.monotonic() < self._check_claims_at:
            return
        after, untouched_ms = "", store.now_ms() - int(CLAIM_SETTLES_S * 1000)
        while tasks := await store.ask(ClaimedTasks(after, BATCH)):
            await self._continue_all([task.id for task in tasks if task.updated_ms < untouched_ms])
            after = tasks[-1].id
        self._check_claims_at = None

    async def _continue(self, task: Task) -> None:
        store = self._records.store
        self._deadlines.note(task)
        action = next_action(task, store.now_ms(), restored=store.state.restore.is_restored)
        match action:
            case RecoveryAction.RUN | RecoveryAction.RESEND:
                self._runs.start(task)
            case RecoveryAction.RECHECK_THEN_RUN:
                if task.run_on is RunOn.ONCE_ALLOWED:
                    self._runs.start(task)
            case RecoveryAction.POLL_UPSTREAM:
                # The open question of a stateful server was lost with its connection; the server may ask again.
                self._runs.follow(await self._withdraw_questions(task))
            case RecoveryAction.WITHDRAW_THEN_RESEND:
                self._runs.start(await self._withdraw_questions(task))
            case RecoveryAction.KEEP_WAITING_FOR_INPUT:
                if task.upstream_handle is not None:
                    self._runs.follow(task)
                else:
                    self._runs.resume(task)
            case RecoveryAction.KEEP_WAITING_FOR_APPROVAL | RecoveryAction.NOTHING:
                return
            case _:
                await self._end(task, action)

    async def _end(self, task: Task, action: _EndingAction) -> None:
        match action:
            case RecoveryAction.EXPIRE_APPROVAL:
                await self._enforcement.expire(task)
            case RecoveryAction.WITHDRAW_THEN_REPORT_UNKNOWN | RecoveryAction.WITHDRAW_THEN_REPORT_FAILED:
                await self._records.conclude(task.id, contact_lost(await self._withdraw_questions(task)))
            case RecoveryAction.LEAVE_TO_A_PERSON | RecoveryAction.REPORT_UNKNOWN | RecoveryAction.REPORT_FAILED:
                # The state has changed since it was read; the next round decides again.
                self._runs.interrupted.add(task.id)
            case RecoveryAction.CANCEL_UPSTREAM:
                await self._runs.cancel(task, CancelNote())
            case _:
                assert_never(action)

    async def _withdraw_questions(self, task: Task) -> Task:
        if not task.question_keys:
            return task
        return await self._records.conclude(task.id, InputSettled(task.question_keys)) or task
