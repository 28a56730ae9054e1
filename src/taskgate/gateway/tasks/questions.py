"""Questions that arise inside a task. They are stored with it, shown to whoever follows it, and the first answer wins.

A stateless caller sees them in `tasks/get` and answers with `tasks/update`; a stateful one is sent them as requests that name the
task, on any stream it has open. The server that asked waits meanwhile, in a future kept here.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from taskgate.core import wire
from taskgate.core.generations import RELATED_TASK
from taskgate.core.meta import with_meta
from taskgate.core.questions import CANCELLED, ELICIT, Answer, Question, bare_params, not_supported
from taskgate.core.tasks.happening import InputAsked, InputSettled
from taskgate.core.tasks.task import Task
from taskgate.core.wire import Raw
from taskgate.gateway.request import Request
from taskgate.gateway.tasks.desk import TaskDesk
from taskgate.ports.store_answers import TaskQuestion

EXPIRY_S: Final = 600.0

Pusher = Callable[[Task, Question], "asyncio.Task[Answer] | None"]
Keeper = Callable[[Task, Question, Callable[[Answer], bool]], Callable[[], None]]
"""Lets a question wait where people look, and says how to take it back."""


class TaskQuestions:
    def __init__(self, desk: TaskDesk) -> None:
        self.push: Pusher = lambda _task, _question: None
        self.keep: Keeper = lambda _task, _question, _answered: _nothing_kept
        self.adopt: Callable[[Task, Request], None] = lambda _task, _request: None
        """A call became a task while questions of it were waiting: they are the task's now."""
        self._desk = desk
        self._waiting: dict[tuple[str, str], asyncio.Future[Answer]] = {}

    async def ask(self, task_id: str, question: Question, request_state: bytes | None = None) -> Answer:
        """Put one question and wait for its answer, a refusal, or the end of its time."""
        answers = await self.ask_all(task_id, {f"q-{secrets.token_hex(4)}": question}, request_state)
        return next(iter(answers.values()), not_supported(question.method))

    async def ask_all(
        self, task_id: str, asked: Mapping[str, Question], request_state: bytes | None = None
    ) -> dict[str, Answer]:
        loop = asyncio.get_running_loop()
        futures = {key: loop.create_future() for key in asked}
        self._waiting.update({(task_id, key): future for key, future in futures.items()})
        stored = tuple(stored_question(key, question, self._desk.store.now_ms()) for key, question in asked.items())
        message = asked_message(next(iter(asked.values())))
        try:
            happening = InputAsked(tuple(asked), message, request_state)
            task = await self._desk.advance(task_id, happening, questions=stored)
            if task is None:
                return {}
            return await self._collect(task, asked, futures)
        finally:
            for key in asked:
                self._waiting.pop((task_id, key), None)

    async def _collect(
        self, task: Task, asked: Mapping[str, Question], futures: Mapping[str, asyncio.Future[Answer]]
    ) -> dict[str, Answer]:
        pushes = [self._push(task, key, question) for key, question in asked.items()]
        kept = [
            self.keep(task, question, partial(self.answered, task.id, key))
            for (key, question), push in zip(asked.items(), pushes, strict=True)
            if push is None
        ]
        answers: dict[str, Answer] = {}
        try:
            async with asyncio.timeout(EXPIRY_S):
                for key, future in futures.items():
                    answers[key] = await future
                    await self._settled(task.id, key)
        except TimeoutError:
            answers.update({key: CANCELLED for key in asked if key not in answers})
        finally:
            for push in pushes:
                if push is not None:
                    push.cancel()
            for withdraw in kept:
                withdraw()
        left = tuple(key for key, future in futures.items() if not future.done())
        if left:
            await self._desk.advance(task.id, InputSettled(left))
        return answers

    async def _settled(self, task_id: str, key: str) -> None:
        """An answered question disappears from the task at once, not only when all are answered."""
        task = await self._desk.store.get(task_id)
        if task is not None and key in task.question_keys:
            await self._desk.advance(task_id, InputSettled((key,)))

    def _push(self, task: Task, key: str, question: Question) -> asyncio.Task[Answer] | None:
        pushed = self.push(task, related(question, task.id))
        if pushed is not None:
            pushed.add_done_callback(lambda done: self._pushed(task.id, key, done))
        return pushed

    def _pushed(self, task_id: str, key: str, done: asyncio.Task[Answer]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.answered(task_id, key, done.result())

    async def take(self, task_id: str, key: str, answer: Answer) -> bool:
        """An answer from outside; when this returns, the task no longer asks the question."""
        if not self.answered(task_id, key, answer):
            return False
        await self._settled(task_id, key)
        return True

    def answered(self, task_id: str, key: str, answer: Answer) -> bool:
        """The first answer wins; anything after it is ignored."""
        future = self._waiting.get((task_id, key))
        if future is None or future.done():
            return False
        future.set_result(answer)
        return True

    def repush(self, task: Task) -> None:
        """A caller opened a stream: what it was not asked yet for want of one can be asked now."""
        self._desk.board.changed(task)


def _nothing_kept() -> None:
    return None


def related(question: Question, task_id: str) -> Question:
    members = wire.members_of(question.params) if question.params is not None else {}
    put = {RELATED_TASK: wire.raw({"taskId": task_id})}
    return Question(question.method, Raw(wire.join(with_meta(members, put))), question.server, task_id)


def stored_question(key: str, question: Question, now_ms: int) -> TaskQuestion:
    drop = ("elicitationId",) if question.method == ELICIT else ()
    embedded = {"method": question.method, "params": bare_params(question.params, drop)}
    return TaskQuestion(
        key, question.server, question.method, wire.encode(embedded), now_ms + int(EXPIRY_S * 1000), now_ms
    )


def asked_message(first: Question) -> str:
    said = first.decoded().get("message")
    what = said if type(said) is str and said else f"an answer to {first.method}"
    return f"{first.server} asks: {what}"[:500]
