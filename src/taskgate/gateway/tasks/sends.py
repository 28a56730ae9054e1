"""The record of every send of one task's call: the intent before, and what a failure proves afterwards."""

from __future__ import annotations

import hashlib
from typing import Protocol

from taskgate.core import wire
from taskgate.core.errors import Executed, GatewayFault, UpstreamError
from taskgate.core.evidence import Cure, failure_verdict
from taskgate.core.governance.approval import Approval
from taskgate.core.tasks import endings
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import (
    AttemptLost,
    AttemptVoided,
    MayNotRepeat,
    RoundAnswered,
    may_send,
)
from taskgate.core.wire import Members
from taskgate.gateway.tasks.task_records import TaskRecords, sent_params
from taskgate.ports.call_failure import CallFailed
from taskgate.ports.store_answers import ApprovalSpent, Intended, Intending, Outdated, StoppedByRecheck
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.tasks import Forbidden, Intend


class Recheck(Protocol):
    """The last check before a task's call is sent: whether the gates still permit it."""

    async def prepare(self, task: Task) -> None:
        """Update the data that the check reads. Raises UpstreamError if the server cannot be reached."""
        ...

    def __call__(self, task: Task, approval: Approval | None, now_ms: int) -> Forbidden | None:
        """Runs inside the transaction that stores the intent. Return None to permit the call."""
        ...


class NotSent(UpstreamError):
    """The call may not be sent (again): the task has ended or has another owner."""

    def __init__(self) -> None:
        super().__init__("upstream_unreachable", "The call was not sent again.")


class TaskSends:
    """Implements `SendLog` for one task."""

    def __init__(self, records: TaskRecords, recheck: Recheck, task: Task, params: Members | None) -> None:
        """`params`: what is sent first. None means the params of the task, read when they are sent: thousands may wait."""
        self.task = task
        """The task as it was last read."""
        self._params = params
        self._records = records
        self._recheck = recheck
        self._unsure = False
        """Whether it is unknown if the last intent was stored."""

    @property
    def params(self) -> Members:
        """The params of the current round."""
        if self._params is None:
            self._params = sent_params(self.task)
        return self._params

    def prepare(self, params: Members) -> None:
        """Set the params that are sent next."""
        self._params = params

    async def sends_again(self, answered: RoundAnswered | None = None) -> None:
        """Store the intent, and the end of the round before if it is given. Raises NotSent if nothing may be sent."""
        byte_hash = hashlib.sha256(wire.join(self.params)).hexdigest()
        intended = await self._records.retry_while_unavailable(lambda: self._intended(byte_hash, answered))
        match intended:
            case Intended(task=sent):
                self.task = sent
                self._records.changes.changed(sent)
                return
            case StoppedByRecheck(task=stopped):
                self._records.announce(stopped)
            case MayNotRepeat() | ApprovalSpent():
                await self.give_up(NotSent())
            case _:
                pass
        raise NotSent

    async def _intended(self, byte_hash: str, answered: RoundAnswered | None) -> Intending:
        """Store the intent. Raises GatewayFault if the data of the recheck is outdated; it is being read again."""
        if self._unsure:
            await self._take_back()
        task, self._unsure = self.task, True
        answer = await self._records.store.do(
            Intend(task.id, byte_hash=byte_hash, upstream=task.server, recheck=self._recheck, answered=answered)
        )
        self._unsure = False
        if isinstance(answer, Outdated):
            what = ", ".join(answer.topics)
            raise GatewayFault("store_unavailable", f"Another gateway has just changed {what}, which is being read.")
        return answer

    async def _take_back(self) -> None:
        """Void an intent whose write timed out and that may be stored after all. Nothing was sent for it."""
        current, ours = await self._records.store.ask(FindTask(self.task.id)), self._records.store.ownership
        if current is None or current.attempts <= self.task.attempts or current.owner != ours.owner:
            return
        self.task = await self._records.advance(current.id, AttemptVoided()) or self.task

    async def refused(self, why: str = "") -> None:
        """Record that the last send was provably not executed, and the type of the error."""
        self.task = await self._records.conclude(self.task.id, AttemptVoided(why)) or self.task

    async def next_round(self, params: Members, state: bytes | None) -> None:
        """The questions of the server are answered: store the intent of the next round."""
        current = await self._records.current(self.task.id)
        # If no question could be asked, the end of the round is not stored yet.
        ended = current is not None and not current.between_rounds
        self._params = params
        await self.sends_again(RoundAnswered(state) if ended else None)

    async def after_failure(self, problem: UpstreamError) -> bool:
        """Record what a failed send proves. Return whether it may be retried; if not, the task has ended."""
        current = await self._records.current(self.task.id)
        if current is None or current.state.is_terminal or isinstance(problem, NotSent):
            return False
        if not isinstance(problem, CallFailed):
            await self._records.conclude(current.id, endings.by_error(current, problem))
            return False
        proof = failure_verdict(problem.evidence, tool_class=current.tool_class)
        if proof.executed is Executed.NO:
            await self.refused(problem.error_type)
        if proof.cure is Cure.RECONNECT:
            return True
        if proof.cure is Cure.REPEAT and may_send(current):
            await self._records.conclude(current.id, AttemptLost(problem.error_type))
            return True
        await self.give_up(problem)
        return False

    async def give_up(self, problem: UpstreamError) -> None:
        current = await self._records.current(self.task.id)
        if current is not None and not current.state.is_terminal:
            await self._records.conclude(current.id, endings.lost(current, problem))
