"""Questions of tasks in the inbox, for callers that cannot see them in `tasks/get`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import TASKS_EXTENSION
from taskgate.core.questions.capabilities import can_answer
from taskgate.core.questions.question import Answer, Question
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import InputRequested, InputSettled
from taskgate.core.wire import raw
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.asker import Asker
from taskgate.gateway.questions.model_sampling import Models
from taskgate.gateway.questions.waiting import Waiting
from taskgate.gateway.requests.question_round import QuestionRound
from taskgate.gateway.requests.request import Request
from taskgate.gateway.tasks.conversation import Conversations
from taskgate.gateway.tasks.stored_questions import keep_answers, keep_round, question_text, stored_question
from taskgate.gateway.tasks.task_records import TaskRecords


class TaskInbox(msgspec.Struct, eq=False):
    activity: Activity
    asker: Asker
    models: Models
    records: TaskRecords
    conversations: Conversations

    def keep(self, task: Task, question: Question, answered: Callable[[Answer], bool]) -> Callable[[], None]:
        """Show a task's question in the inbox, unless its caller sees it in `tasks/get`. Return a function that withdraws it."""
        declared = self.conversations.declared(task.id)
        if not question.shared and _sees_it_natively(task, declared, question):
            return _nothing
        waits, carried = self.asker.may_wait(question), _is_carried(task, declared, question)
        attended = carried or self.asker.attended(task.conversation_key)
        if self.models.answer_for(question) and not (waits and attended):
            self.activity.spawn(self._by_model(task, question, answered))
            return _nothing
        if not waits:
            return _nothing
        inbox = self.activity.inbox
        keep = partial(self._keep_answer, task.id, question.key or "")
        waiting = inbox.put(
            task.conversation_key, question, answered, task_id=task.id, keep_answer=keep, asks_client=carried
        )
        return (lambda: inbox.withdraw(waiting)) if waiting is not None else _nothing

    async def _by_model(self, task: Task, question: Question, answered: Callable[[Answer], bool]) -> None:
        answered(await self.models.answer(question, task.principal))

    async def adopt(self, task: Task, request: Request) -> None:
        """Attach the open questions of a promoted call to its task. Answers of its last round are stored too, so that its
        questions are not asked again after a crash.
        """
        waiting, question_round = self.activity.inbox.of_request(request), request.delivery.question_round
        of_round = {
            one.key: one.id for one in waiting if question_round is not None and one.key in question_round.questions
        }
        for one in waiting:
            keep, able = partial(self._keep_answer, task.id, one.key or one.id), _can_answer(request, one)
            one.now_of_task(task.id, keep, asks_client=able)
        if question_round is not None:
            await self._adopt_round(task, question_round, of_round)
        for one in waiting:
            if one.key not in of_round:
                await self._show(task, one)

    async def _adopt_round(self, task: Task, question_round: QuestionRound, shown: Mapping[str | None, str]) -> None:
        now_ms = self.records.store.now_ms()
        stored = tuple(
            stored_question(key, replace(question, shown_as=shown.get(key)), now_ms)
            for key, question in question_round.questions.items()
        )
        still = [question for key, question in question_round.questions.items() if key not in question_round.answers]
        message = question_text(still[0]) if still else None
        state = None if question_round.sent else question_round.state
        event = InputRequested(tuple(question_round.questions), message, state, ends_round=not question_round.sent)
        if await self.records.advance(task.id, event, questions=stored) is not None:
            question_round.store_answers_by(
                partial(keep_round, self.records, task.id, question_round), self.activity.spawn
            )
            await keep_round(self.records, task.id, question_round)

    async def _keep_answer(self, task_id: str, key: str, answer: Answer) -> None:
        await keep_answers(self.records, task_id, {key: answer})

    async def _show(self, task: Task, waiting: Waiting) -> None:
        question = Question(waiting.method, raw(waiting.params), waiting.server, task.id, shown_as=waiting.id)
        key = waiting.key or waiting.id
        stored = stored_question(key, question, self.records.store.now_ms())
        event = InputRequested((key,), question_text(question))
        if await self.records.advance(task.id, event, questions=(stored,)) is not None:
            self.activity.spawn(self._settle(task, key, waiting))

    async def _settle(self, task: Task, key: str, waiting: Waiting) -> None:
        await waiting.over.wait()
        await self.records.advance(task.id, InputSettled((key,)))


def _can_answer(request: Request, waiting: Waiting) -> bool:
    """Whether replies carry the question of a promoted call to its client."""
    return request.envelope is not None and can_answer(request.capabilities, waiting.method, waiting.params)


def _is_carried(task: Task, declared: Mapping[str, Any] | None, question: Question) -> bool:
    """Whether replies carry the question to a stateless caller that declared that it can answer it."""
    if task.generation is not Generation.STATELESS or declared is None:
        return False
    return can_answer(declared, question.method, question.decoded())


def _sees_it_natively(task: Task, declared: Mapping[str, Any] | None, question: Question) -> bool:
    """Whether a stateless caller finds the question in `tasks/get` and declared that it can answer it."""
    extensions = (declared or {}).get("extensions")
    supports_tasks = isinstance(extensions, Mapping) and TASKS_EXTENSION in extensions
    return supports_tasks and _is_carried(task, declared, question)


def _nothing() -> None:
    return None
