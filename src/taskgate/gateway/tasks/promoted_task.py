"""The task of a promoted call, which receives notifications and questions in place of the caller that already has its reply."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from taskgate.core.questions.question import Answer, Question
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Members, Raw
from taskgate.gateway.requests.delivery import ReplyDelivery
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.sends import Recheck, TaskSends
from taskgate.gateway.tasks.server_reports import TaskSide, progress_note
from taskgate.gateway.tasks.stored_questions import keep_round
from taskgate.gateway.tasks.task_records import TaskRecords


class StoredPromotedTask:
    """Implements `PromotedTask` for a promoted call: notifications and questions of the server go to the task."""

    def __init__(
        self,
        task: Task,
        request: Request,
        params: Members,
        *,
        records: TaskRecords,
        questions: TaskQuestions,
        recheck: Recheck,
    ) -> None:
        self._records = records
        self._questions = questions
        self._side = TaskSide(records, task)
        self._task_id = task.id
        self._principal = task.principal
        self._delivery = weakref.ref(request.delivery)
        """Weak, because the delivery refers to this object: a cycle would keep the arguments of every promoted call until the next
        full collection."""
        self._sends = TaskSends(records, recheck, task, params)

    @property
    def _rounds(self) -> ReplyDelivery:
        """What is known of the rounds of the call. It is alive, because only the delivery calls this object."""
        delivery = self._delivery()
        assert delivery is not None
        return delivery

    def on_notification(self, method: str, params: Raw | None) -> None:
        noted = progress_note(method, params)
        if noted is not None:
            self._records.note(self._task_id, self._principal, noted)

    def server_waits(self, text: str | None) -> None:
        self._side.server_waits(text)

    async def ask(self, question: Question) -> Answer:
        return await self._questions.ask(self._task_id, question, self._rounds.server_state)

    async def ask_round(self, questions: Mapping[str, Question]) -> Mapping[str, Answer]:
        return await self._questions.ask_all(self._task_id, questions, self._rounds.server_state)

    async def refused(self) -> None:
        if not await ran_before_promotion(self._records, self._task_id, self._rounds.server_state):
            await self._sends.refused()

    async def sends_again(self) -> None:
        if not await ran_before_promotion(self._records, self._task_id, self._rounds.server_state):
            await self._sends.sends_again()

    async def next_round(self, params: Members, state: bytes | None) -> None:
        question_round = self._rounds.question_round
        if question_round is not None:
            await keep_round(self._records, self._task_id, question_round)
        await self._sends.next_round(params, state)


async def ran_before_promotion(records: TaskRecords, task_id: str, server_state: bytes | None) -> bool:
    """Whether a round of the call had run before promotion. The store cannot distinguish that from a voided attempt."""
    task = await records.current(task_id)
    return server_state is not None and task is not None and task.request_state is None
