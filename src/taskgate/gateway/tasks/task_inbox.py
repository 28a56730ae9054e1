"""Questions of tasks in the inbox: they are stored with their task, and shown here to a caller that cannot see them there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from taskgate.core.generations import Generation
from taskgate.core.generations.stateless_2026 import TASKS_EXTENSION
from taskgate.core.questions import Answer, Question, can_answer
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import InputAsked, InputSettled
from taskgate.core.wire import raw
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.ask_models import Models
from taskgate.gateway.questions.asker import Asker
from taskgate.gateway.questions.inbox import Waiting
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.conversation import Conversations
from taskgate.gateway.tasks.questions import asked_message, stored_question
from taskgate.gateway.tasks.task_records import TaskRecords


class TaskInbox:
    def __init__(
        self, activity: Activity, asker: Asker, models: Models, records: TaskRecords, conversations: Conversations
    ) -> None:
        self._activity = activity
        self._asker = asker
        self._models = models
        self._records = records
        self._conversations = conversations

    def keep(self, task: Task, question: Question, answered: Callable[[Answer], bool]) -> Callable[[], None]:
        """Show a task's question in the inbox, unless its caller sees it natively."""
        declared = self._conversations.declared(task.id)
        if _sees_it_natively(task, declared, question):
            return _nothing
        waits = self._asker.may_wait(question)
        if self._models.answer_for(question) and not (waits and self._asker.attended(task.asked_in)):
            self._activity.spawn(self._by_model(task, question, answered))
            return _nothing
        if not waits:
            return _nothing
        inbox = self._activity.inbox
        waiting = inbox.put(task.asked_in, question, answered, task_id=task.id)
        return (lambda: inbox.withdraw(waiting)) if waiting is not None else _nothing

    async def _by_model(self, task: Task, question: Question, answered: Callable[[Answer], bool]) -> None:
        answered(await self._models.answer(question, task.principal))

    async def adopt(self, task: Task, request: Request) -> None:
        """The call became a task while questions of it waited: the task shows them from now on."""
        for waiting in self._activity.inbox.of_request(request):
            waiting.now_of_task(task.id)
            await self._show(task, waiting, request.asked_state)

    async def _show(self, task: Task, waiting: Waiting, state: bytes | None) -> None:
        question = Question(waiting.method, raw(waiting.params), waiting.server, task.id, shown_as=waiting.id)
        key = waiting.key or waiting.id
        stored = stored_question(key, question, self._records.store.now_ms())
        event = InputAsked((key,), asked_message(question), state, ends_round=state is not None)
        if await self._records.advance(task.id, event, questions=(stored,)) is not None:
            self._activity.spawn(self._settle(task, key, waiting))

    async def _settle(self, task: Task, key: str, waiting: Waiting) -> None:
        await waiting.over.wait()
        await self._records.advance(task.id, InputSettled((key,)))


def _sees_it_natively(task: Task, declared: Mapping[str, Any] | None, question: Question) -> bool:
    """A stateless caller that knows tasks finds the question in `tasks/get`, if it said that it can answer such."""
    if task.generation is not Generation.STATELESS or declared is None:
        return False
    extensions = declared.get("extensions")
    knows_tasks = isinstance(extensions, Mapping) and TASKS_EXTENSION in extensions
    return knows_tasks and can_answer(declared, question.method, question.decoded())


def _nothing() -> None:
    return None
