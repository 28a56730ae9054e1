"""Questions of servers that belong to a task. They are stored with the task, and the first answer wins.

A stateless caller sees them in `tasks/get` and answers with `tasks/update`. A stateful caller gets them as requests that name the
task, on any stream that it has open. The server's call waits meanwhile for a future that is kept here.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from taskgate.core import wire
from taskgate.core.generations.generation import RELATED_TASK
from taskgate.core.meta import with_meta
from taskgate.core.questions.question import ELICIT, Answer, Question, not_supported, unanswered
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import InputAsked, InputSettled
from taskgate.core.wire import Raw
from taskgate.gateway.events import EventHub, TaskStreamOpened
from taskgate.gateway.questions.elicitations import UrlElicitations
from taskgate.gateway.requests.session import Keep
from taskgate.gateway.tasks.stored_questions import (
    EXPIRY_S,
    asked_message,
    keep_answers,
    question_from_store,
    stored_question,
)
from taskgate.gateway.tasks.task_records import TaskRecords

LOOK_AFTER_S: Final = 2.0
MAX_OPEN: Final = 100
Pusher = Callable[[Task, Question, Keep], "tuple[asyncio.Task[Answer], Callable[[], bool]] | None"]
"""Asks the caller on a stream of its own: the asking, and whether it has reached nobody so far."""
Keeper = Callable[[Task, Question, Callable[[Answer], bool]], Callable[[], None]]
"""Lets a question wait where people look, and says how to take it back."""


@dataclass(slots=True)
class _Put:
    """One open question, and where it was put."""

    task: Task
    key: str
    question: Question
    push: asyncio.Task[Answer] | None = None
    unheard: Callable[[], bool] | None = None
    timer: asyncio.TimerHandle | None = None
    watch: asyncio.TimerHandle | None = None
    kept: Callable[[], None] | None = None

    def withdraw(self) -> None:
        if self.push is not None:
            self.push.cancel()
        if self.kept is not None:
            self.kept()
        for timer in (self.timer, self.watch):
            if timer is not None:
                timer.cancel()


class TaskQuestions:
    def __init__(
        self,
        records: TaskRecords,
        urls: UrlElicitations,
        events: EventHub,
        *,
        push: Pusher,
        keep: Keeper,
        expiry_s: Callable[[Question], float],
    ) -> None:
        self._records = records
        self._urls = urls
        self._ask_on_stream = push
        self._keep = keep
        self._expiry_s = expiry_s
        self._open: Counter[str] = Counter()
        self._waiting: dict[tuple[str, str], asyncio.Future[Answer]] = {}
        self._puts: dict[str, list[_Put]] = {}
        events.subscribe(TaskStreamOpened, lambda event: self.offer(event.task_id))

    async def ask(self, task_id: str, question: Question, request_state: bytes | None = None) -> Answer:
        """Put one question and wait for its answer, a refusal, or the end of its time."""
        if self._open[task_id] >= MAX_OPEN:
            return Answer(error=wire.encode({"code": -32603, "message": f"{MAX_OPEN} questions wait already."}))
        self._open[task_id] += 1
        try:
            key = question.key or f"q-{secrets.token_hex(4)}"
            answers = await self.ask_all(task_id, {key: question}, request_state)
        finally:
            self._open[task_id] -= 1
            if not self._open[task_id]:
                del self._open[task_id]
        return next(iter(answers.values()), not_supported(question.method))

    async def ask_all(
        self, task_id: str, asked: Mapping[str, Question], request_state: bytes | None = None
    ) -> dict[str, Answer]:
        """Put several questions at once. What may not be asked is refused at once; the rest waits for its answers."""
        refused = await self._refused(task_id, asked)
        left = {key: question for key, question in asked.items() if key not in refused} if refused else asked
        return {**refused, **await self._ask_judged(task_id, left, request_state)} if left else refused

    async def _ask_judged(
        self, task_id: str, asked: Mapping[str, Question], request_state: bytes | None
    ) -> dict[str, Answer]:
        futures = {key: asyncio.get_running_loop().create_future() for key in asked}
        self._waiting.update({(task_id, key): future for key, future in futures.items()})
        now_ms = self._records.store.now_ms()
        stored = tuple(stored_question(key, one, now_ms, self._expiry_s(one)) for key, one in asked.items())
        message = asked_message(next(iter(asked.values())))
        try:
            # A stateless server asks in its answer: what was sent to it has been dealt with.
            event = InputAsked(tuple(asked), message, request_state, ends_round=request_state is not None)
            task = await self._records.patiently(lambda: self._records.advance(task_id, event, questions=stored))
            if task is None:
                return {}
            return await self._collect(task, asked, futures)
        finally:
            for key in asked:
                self._waiting.pop((task_id, key), None)

    async def _refused(self, task_id: str, asked: Mapping[str, Question]) -> dict[str, Answer]:
        """Addresses that nobody may be shown: their server is answered at once, and the task never asks them."""
        elicited = {key: question for key, question in asked.items() if question.method == ELICIT}
        task = await self._records.current(task_id) if elicited else None
        if task is None:
            return {}
        judged = {key: self._urls.refusal(task.principal, question) for key, question in elicited.items()}
        return {key: answer for key, answer in judged.items() if answer is not None}

    async def take_up(self, task: Task) -> dict[str, Answer]:
        """After a restart: wait for the questions that are still open, and add the answers that came before it."""
        still = await self._records.questions(task.id)
        given = {asked.key: asked.answer for asked in await self._records.questions(task.id, answered=True)}
        answers = {key: Answer(result=answer) for key, answer in given.items() if answer is not None}
        asked = {stored.key: question_from_store(stored, task.id) for stored in still if stored.key not in answers}
        futures: dict[str, asyncio.Future[Answer]] = {}
        for key in asked:
            futures[key] = self._waiting[task.id, key] = asyncio.get_running_loop().create_future()
        try:
            return {**answers, **await self._collect(task, asked, futures)}
        finally:
            for key in asked:
                self._waiting.pop((task.id, key), None)

    async def _collect(
        self, task: Task, asked: Mapping[str, Question], futures: Mapping[str, asyncio.Future[Answer]]
    ) -> dict[str, Answer]:
        puts = [self._put(task, key, question) for key, question in asked.items()]
        answers: dict[str, Answer] = {}
        try:
            longest = max((self._expiry_s(question) for question in asked.values()), default=EXPIRY_S)
            async with asyncio.timeout(longest):
                for key, future in futures.items():
                    answers[key] = await future
                    await self._records.patiently(partial(self._settled, task.id, key, answers[key]))
        except TimeoutError:
            answers.update({key: unanswered(question.method) for key, question in asked.items() if key not in answers})
        finally:
            for put in puts:
                put.withdraw()
                self._puts[task.id].remove(put)
            if not self._puts.get(task.id, ()):
                self._puts.pop(task.id, None)
        left = tuple(key for key, future in futures.items() if not future.done())
        if left:
            await self._records.conclude(task.id, InputSettled(left))
        return answers

    def _put(self, task: Task, key: str, question: Question) -> _Put:
        put = _Put(task, key, question)
        self._push(put)
        if put.push is None or question.shared:
            # A question that names no call may be another call's, whose caller does not look at this task.
            self._keep_in_inbox(put)
        loop = asyncio.get_running_loop()
        put.watch = loop.call_later(LOOK_AFTER_S, self._look_after, put)
        if question.is_url:
            put.timer = loop.call_later(
                self._expiry_s(question), self.answered, task.id, key, unanswered(question.method)
            )
        self._puts.setdefault(task.id, []).append(put)
        return put

    def _keep_in_inbox(self, put: _Put) -> None:
        question = replace(put.question, key=put.key)
        put.kept = self._keep(put.task, question, partial(self.answered, put.task.id, put.key))

    def _look_after(self, put: _Put) -> None:
        """A stream may break after a question went out on it: it is asked on another one, and can be seen meanwhile."""
        if put.kept is None and put.unheard is not None and put.unheard() and not self._push(put):
            self._keep_in_inbox(put)
        put.watch = asyncio.get_running_loop().call_later(LOOK_AFTER_S, self._look_after, put)

    def offer(self, task_id: str) -> None:
        """A stream was opened on which the caller can be asked: what has not reached it yet is asked there."""
        for put in self._puts.get(task_id, ()):
            if put.push is None or (put.unheard is not None and put.unheard()):
                self._push(put)

    async def _settled(self, task_id: str, key: str, answer: Answer) -> None:
        """An answered question disappears from the task at once; the answer is kept."""
        await keep_answers(self._records, task_id, {key: answer})

    def _push(self, put: _Put) -> bool:
        """Ask on a stream of the caller's, in place of where it was asked before. True if somebody reads that stream."""
        before, put.push = put.push, None
        if before is not None:
            before.cancel()
        keep = partial(self.take, put.task.id, put.key)
        asked = put.question if put.question.shared else related(put.question, put.task.id)
        pushed = self._ask_on_stream(put.task, asked, keep)
        if pushed is None:
            return False
        put.push, put.unheard = pushed
        put.push.add_done_callback(lambda done: self._pushed(put.task.id, put.key, done))
        return not put.unheard()

    def _pushed(self, task_id: str, key: str, done: asyncio.Task[Answer]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.answered(task_id, key, done.result())

    async def take(self, task_id: str, key: str, answer: Answer) -> bool:
        """An answer from outside; when this returns, the task no longer asks the question."""
        if self.answered(task_id, key, answer):
            await self._settled(task_id, key, answer)
            return True
        task = await self._records.store.get(task_id)
        if task is None or key not in task.question_keys or task.owner == self._records.store.ownership.owner:
            return False
        # Another gateway waits for it: it finds the answer in the store.
        await self._settled(task_id, key, answer)
        return True

    async def look_again(self, task_id: str) -> None:
        """Another gateway may have taken an answer to what is asked here."""
        if not (waiting := [key for asked, key in self._waiting if asked == task_id]):
            return
        # In this order: neither what is about to be stored nor what is answered between the two reads is taken for withdrawn.
        stored = {put.key for put in self._puts.get(task_id, ())}
        still = {asked.key for asked in await self._records.store.questions(task_id)}
        given = {asked.key: asked.answer for asked in await self._records.store.questions(task_id, answered=True)}
        for key in waiting:
            if given.get(key) is not None:
                self.answered(task_id, key, Answer(result=given[key]))
            elif key in stored and key not in still:
                self.answered(task_id, key, Answer(error=wire.encode({"code": -32603, "message": "Not answered."})))

    def answered(self, task_id: str, key: str, answer: Answer) -> bool:
        """The first answer wins; anything after it is ignored."""
        future = self._waiting.get((task_id, key))
        if future is None or future.done():
            return False
        future.set_result(answer)
        return True


def related(question: Question, task_id: str) -> Question:
    members = wire.members_of(question.params) if question.params is not None else {}
    put = {RELATED_TASK: wire.raw({"taskId": task_id})}
    return Question(question.method, Raw(wire.join(with_meta(members, put))), question.server, task_id)
