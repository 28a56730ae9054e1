"""Questions of a task as they are stored with it, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taskgate.core import wire
from taskgate.core.questions.question import ELICIT, Answer, Question, bare_params
from taskgate.core.tasks.transition import InputSettled
from taskgate.gateway.requests.question_round import QuestionRound
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.store_answers import TaskQuestion
from taskgate.store.operations.task_queries import FindTask

EXPIRY_S: Final = 600.0


async def keep_answers(records: TaskRecords, task_id: str, given: Mapping[str, Answer]) -> None:
    """Store those answers that the task still waits for."""
    task = await records.store.ask(FindTask(task_id))
    keys = tuple(key for key in given if task is not None and key in task.question_keys)
    if keys:
        results = {key: given[key].result for key in keys}
        answers = {key: result for key, result in results.items() if result is not None}
        await records.advance(task_id, InputSettled(keys), answers=answers)


async def keep_round(records: TaskRecords, task_id: str, asked: QuestionRound) -> None:
    """Store the answers so far to one round of a promoted call."""
    async with asked.storing:
        await keep_answers(records, task_id, asked.answers)


def question_from_store(stored: TaskQuestion, task_id: str) -> Question:
    params = wire.members_of(stored.request).get("params")
    return Question(
        method=stored.method,
        params=params,
        server=stored.server,
        related_task=task_id,
        key=stored.key,
        restored=True,
        shown_as=stored.shown_as,
    )


def stored_question(key: str, question: Question, now_ms: int, expiry_s: float = EXPIRY_S) -> TaskQuestion:
    drop = ("elicitationId",) if question.method == ELICIT else ()
    embedded = {"method": question.method, "params": bare_params(question.params, drop)}
    return TaskQuestion(
        key=key,
        server=question.server,
        method=question.method,
        request=wire.encode(embedded),
        expires_ms=now_ms + int(expiry_s * 1000),
        asked_ms=now_ms,
        shown_as=question.shown_as,
    )


def question_text(first: Question) -> str:
    text = first.decoded().get("message")
    what = text if type(text) is str and text else f"an answer to {first.method}"
    return f"{first.server} asks: {what}"[:500]
