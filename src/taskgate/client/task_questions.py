"""The open questions of one task, and how their answers are sent.

A stateful server sends questions as requests, so only the parked ones are known here. A stateless server lists them in the
task and accepts answers by `tasks/update`. Each key is answered once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from taskgate.client.errors import ClientError, Question, Refused, ServerError
from taskgate.client.follower import Follower
from taskgate.client.questions import ELICITATION
from taskgate.client.results import Task


class TaskQuestions:
    """The open and answered questions of one task."""

    def __init__(self, following: Follower, task_id: str, warn: Callable[[str | None], None]) -> None:
        self._following = following
        self._task_id = task_id
        self._warn = warn
        self._answered: set[str] = set()
        self._answering: asyncio.Task[None] | None = None

    def open_ones(self, task: Task | None) -> dict[str, Question]:
        if task is None or task.status.is_terminal:
            return {}
        listed = {key: question for key, question in task.questions.items() if key not in self._answered}
        return listed | self._following.answering.parked(task.task_id)

    def attend(self, task: Task) -> None:
        """Answer the questions of a stateless task for which there is a callback."""
        answering = self._following.answering
        ready = {
            key: question
            for key, question in task.questions.items()
            if key not in self._answered and answering.can_answer(question)
        }
        if ready and (self._answering is None or self._answering.done()):
            self._answering = self._following.spawn(self._answer_by_callback(ready))

    async def give(self, answers: Mapping[str, Any]) -> None:
        """Send answers of the program."""
        answering = self._following.answering
        listed = {key: dict(answer) for key, answer in answers.items() if not answering.give(key, answer)}
        if listed:
            await self._send(listed)

    async def _answer_by_callback(self, questions: Mapping[str, Question]) -> None:
        answers: dict[str, dict[str, Any]] = {}
        for key, question in questions.items():
            try:
                answers[key] = await self._following.answering.answer(question)
            except (Refused, ServerError) as error:
                if question.method == ELICITATION:
                    answers[key] = {"action": "cancel"}
                else:  # the protocol has no refusal here; the task keeps waiting, and the program gets a warning
                    self._answered.add(key)
                    self._warn(f"a question was refused: {error}")
        if answers:
            await self._send(answers)

    async def _send(self, answers: dict[str, dict[str, Any]]) -> None:
        self._answered.update(answers)
        try:
            await self._following.update_task(self._task_id, answers)
        except ClientError:
            self._answered.difference_update(answers)
            raise
        self._following.poll_now_by_id(self._task_id)
