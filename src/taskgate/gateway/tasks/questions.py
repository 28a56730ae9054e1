"""Questions of servers that belong to a task. They are stored with the task, and the first answer wins.

A stateless caller sees them in `tasks/get` and answers with `tasks/update`. A stateful caller gets them as requests that name the
task, on any stream that it has open. The server's call waits for a future that is kept here.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from taskgate.core import wire
from taskgate.core.generations.generation import RELATED_TASK
from taskgate.core.meta import with_meta
from taskgate.core.questions.question import ELICIT, Answer, Question, not_supported, unanswered
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import InputRequested, InputSettled
from taskgate.core.wire import Raw
from taskgate.gateway.events import EventHub, TaskStreamOpened
from taskgate.gateway.questions.url_elicitations import UrlElicitations
from taskgate.gateway.requests.session import Keep
from taskgate.gateway.tasks.stored_questions import (
    EXPIRY_S,
    keep_answers,
    question_from_store,
    question_text,
    stored_question,
)
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.store.operations.task_queries import FindTask, QuestionsOf

CHECK_DELIVERY_S: Final = 2.0
MAX_OPEN: Final = 100
Pusher = Callable[[Task, Question, Keep], "tuple[asyncio.Task[Answer], Callable[[], bool]] | None"]
"""Sends a question on a stream of the caller. Returns the pending answer and a check for a question that was not delivered."""
Keeper = Callable[[Task, Question, Callable[[Answer], bool]], Callable[[], None]]
"""Puts a question into the inbox. Returns a function that withdraws it."""


class _OpenQuestion(msgspec.Struct):
    """One open question, and where it was sent."""

    task: Task
    key: str
    question: Question
    push: asyncio.Task[Answer] | None = None
    is_undelivered: Callable[[], bool] | None = None
    timer: asyncio.TimerHandle | None = None
    watch: asyncio.TimerHandle | None = None
    withdraw_from_inbox: Callable[[], None] | None = None

    def withdraw(self) -> None:
        if self.push is not None:
            self.push.cancel()
        if self.withdraw_from_inbox is not None:
            self.withdraw_from_inbox()
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
        self._open_questions: dict[str, list[_OpenQuestion]] = {}
        events.subscribe(TaskStreamOpened, lambda event: self.ask_undelivered(event.task_id))

    async def ask(self, task_id: str, question: Question, request_state: bytes | None = None) -> Answer:
        """Ask one question and wait for its answer, a refusal or its expiry."""
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

    async def ask_once(self, task: Task, key: str, question: Question) -> Answer | None:
        """Ask a question under a key of its own. After a restart, wait for the one that was asked, or return its answer. None if
        the task has ended."""
        future = self._waiting[task.id, key] = asyncio.get_running_loop().create_future()
        try:
            # In this order, so that an answer that is stored between the reads is found by the second one.
            still = {asked.key for asked in await self._records.questions(task.id)}
            given = {asked.key: asked.answer for asked in await self._records.questions(task.id, answered=True)}
            if given.get(key) is not None:
                return Answer(result=given[key])
            if key in still:
                restored = replace(question, key=key, restored=True)
                return (await self._collect(task, {key: restored}, {key: future}))[key]
        finally:
            self._waiting.pop((task.id, key), None)
        return (await self.ask_all(task.id, {key: question})).get(key)

    async def ask_all(
        self, task_id: str, questions: Mapping[str, Question], request_state: bytes | None = None
    ) -> dict[str, Answer]:
        """Ask several questions. Those that may not be asked are refused at once; the others wait for their answers."""
        refused = await self._refused(task_id, questions)
        left = {key: question for key, question in questions.items() if key not in refused} if refused else questions
        return {**refused, **await self._ask_permitted(task_id, left, request_state)} if left else refused

    async def _ask_permitted(
        self, task_id: str, questions: Mapping[str, Question], request_state: bytes | None
    ) -> dict[str, Answer]:
        futures = {key: asyncio.get_running_loop().create_future() for key in questions}
        self._waiting.update({(task_id, key): future for key, future in futures.items()})
        now_ms = self._records.store.now_ms()
        stored = tuple(stored_question(key, one, now_ms, self._expiry_s(one)) for key, one in questions.items())
        message = question_text(next(iter(questions.values())))
        try:
            # A stateless server asks in its reply, so the round that was sent has ended.
            event = InputRequested(tuple(questions), message, request_state, ends_round=request_state is not None)
            task = await self._records.retry_while_unavailable(
                lambda: self._records.advance(task_id, event, questions=stored)
            )
            if task is None:
                return {}
            return await self._collect(task, questions, futures)
        finally:
            for key in questions:
                self._waiting.pop((task_id, key), None)

    async def _refused(self, task_id: str, questions: Mapping[str, Question]) -> dict[str, Answer]:
        """Refuse elicitations with URLs that may not be shown. The task never asks them."""
        elicited = {key: question for key, question in questions.items() if question.method == ELICIT}
        task = await self._records.current(task_id) if elicited else None
        if task is None:
            return {}
        refusals = {key: self._urls.refusal(task.principal, question) for key, question in elicited.items()}
        return {key: answer for key, answer in refusals.items() if answer is not None}

    async def resume(self, task: Task) -> dict[str, Answer]:
        """After a restart: wait for the questions that are still open, and add the answers that are stored already."""
        futures = {key: asyncio.get_running_loop().create_future() for key in task.question_keys}
        self._waiting.update({(task.id, key): future for key, future in futures.items()})
        try:
            still = await self._records.questions(task.id)
            given = {asked.key: asked.answer for asked in await self._records.questions(task.id, answered=True)}
            answers = {key: Answer(result=answer) for key, answer in given.items() if answer is not None}
            left = {stored.key: question_from_store(stored, task.id) for stored in still if stored.key not in answers}
            waiting = {key: future for key, future in futures.items() if key in left}
            return {**answers, **await self._collect(task, left, waiting)}
        finally:
            for key in futures:
                self._waiting.pop((task.id, key), None)

    async def _collect(
        self, task: Task, questions: Mapping[str, Question], futures: Mapping[str, asyncio.Future[Answer]]
    ) -> dict[str, Answer]:
        open_questions = [self._ask_caller(task, key, question) for key, question in questions.items()]
        answers: dict[str, Answer] = {}
        try:
            longest = max((self._expiry_s(question) for question in questions.values()), default=EXPIRY_S)
            async with asyncio.timeout(longest):
                for key, future in futures.items():
                    given = await future
                    answers[key] = await self._records.retry_while_unavailable(
                        partial(self._store_answer, task.id, key, given)
                    )
        except TimeoutError:
            answers.update(
                {key: unanswered(question.method) for key, question in questions.items() if key not in answers}
            )
        finally:
            for entry in open_questions:
                entry.withdraw()
                self._open_questions[task.id].remove(entry)
            if not self._open_questions.get(task.id, ()):
                self._open_questions.pop(task.id, None)
        left = tuple(key for key, future in futures.items() if not future.done())
        if left:
            await self._records.conclude(task.id, InputSettled(left))
        return answers

    def _ask_caller(self, task: Task, key: str, question: Question) -> _OpenQuestion:
        entry = _OpenQuestion(task, key, question)
        self._push(entry)
        if entry.push is None or question.shared:
            # A question without a call may belong to another call, whose caller does not see this task.
            self._keep_in_inbox(entry)
        loop = asyncio.get_running_loop()
        entry.watch = loop.call_later(CHECK_DELIVERY_S, self._check_delivery, entry)
        if question.is_url:
            entry.timer = loop.call_later(
                self._expiry_s(question), self.resolve, task.id, key, unanswered(question.method)
            )
        self._open_questions.setdefault(task.id, []).append(entry)
        return entry

    def _keep_in_inbox(self, entry: _OpenQuestion) -> None:
        question = replace(entry.question, key=entry.key)
        entry.withdraw_from_inbox = self._keep(entry.task, question, partial(self.resolve, entry.task.id, entry.key))

    def _check_delivery(self, entry: _OpenQuestion) -> None:
        """Send a question again whose stream broke, and show it in the inbox meanwhile."""
        if (
            entry.withdraw_from_inbox is None
            and entry.is_undelivered is not None
            and entry.is_undelivered()
            and not self._push(entry)
        ):
            self._keep_in_inbox(entry)
        entry.watch = asyncio.get_running_loop().call_later(CHECK_DELIVERY_S, self._check_delivery, entry)

    def ask_undelivered(self, task_id: str) -> None:
        """The caller has opened a stream: send the questions on it that did not reach the caller yet."""
        calls = (entry for asked in self._open_questions.values() for entry in asked if entry.task.parent == task_id)
        for entry in (*self._open_questions.get(task_id, ()), *calls):
            if entry.push is None or (entry.is_undelivered is not None and entry.is_undelivered()):
                self._push(entry)

    async def _store_answer(self, task_id: str, key: str, answer: Answer) -> Answer:
        """Remove an answered question from the task at once, and store the answer. Return the one that counts: another gateway
        may have stored one before."""
        await keep_answers(self._records, task_id, {key: answer})
        if self._records.store.shared is None:
            return answer
        stored = {
            asked.key: asked.answer for asked in await self._records.store.ask(QuestionsOf(task_id, answered=True))
        }
        first = stored.get(key)
        return answer if first is None else Answer(result=first)

    def _push(self, entry: _OpenQuestion) -> bool:
        """Send the question on a stream of the caller instead of the earlier one. Return whether that stream is read."""
        before, entry.push = entry.push, None
        if before is not None:
            before.cancel()
        keep = partial(self.accept_answer, entry.task.id, entry.key)
        # The caller of a script knows the task of the script only.
        known = entry.task.parent or entry.task.id
        question = entry.question if entry.question.shared else related(entry.question, known)
        pushed = self._ask_on_stream(entry.task, question, keep)
        if pushed is None:
            return False
        entry.push, entry.is_undelivered = pushed
        entry.push.add_done_callback(lambda done: self._on_pushed_answer(entry.task.id, entry.key, done))
        return not entry.is_undelivered()

    def _on_pushed_answer(self, task_id: str, key: str, done: asyncio.Task[Answer]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.resolve(task_id, key, done.result())

    async def accept_answer(self, task_id: str, key: str, answer: Answer) -> bool:
        """Accept an answer from outside the run. When this returns, the task no longer asks the question."""
        if self.resolve(task_id, key, answer):
            return await self._store_answer(task_id, key, answer) == answer
        # No run waits for it in this process: another gateway has it, or the task has not continued after a restart. Both find it
        # in the store.
        task = await self._records.store.ask(FindTask(task_id))
        if task is None or key not in task.question_keys:
            return False
        first = await self._store_answer(task_id, key, answer)
        # Unless the task continued meanwhile and read the store before the answer was there.
        self.resolve(task_id, key, first)
        return first == answer

    async def check_stored_answers(self, task_id: str) -> None:
        """Use the answers that another gateway has stored."""
        if not (waiting := [key for waiting_id, key in self._waiting if waiting_id == task_id]):
            return
        # In this order, so that a question that is being stored, or answered between the reads, does not count as withdrawn.
        stored = {entry.key for entry in self._open_questions.get(task_id, ())}
        still = {asked.key for asked in await self._records.store.ask(QuestionsOf(task_id))}
        given = {
            asked.key: asked.answer for asked in await self._records.store.ask(QuestionsOf(task_id, answered=True))
        }
        for key in waiting:
            if given.get(key) is not None:
                self.resolve(task_id, key, Answer(result=given[key]))
            elif key in stored and key not in still:
                self.resolve(task_id, key, Answer(error=wire.encode({"code": -32603, "message": "Not answered."})))

    def resolve(self, task_id: str, key: str, answer: Answer) -> bool:
        """Resolve a question with its first answer. Later answers are ignored."""
        waiting = self._waiting.get((task_id, key))
        if waiting is None or waiting.done():
            return False
        waiting.set_result(answer)
        return True


def related(question: Question, task_id: str) -> Question:
    members = wire.members_of(question.params) if question.params is not None else {}
    meta = {RELATED_TASK: wire.raw({"taskId": task_id})}
    params = Raw(wire.join(with_meta(members, meta)))
    return Question(question.method, params, question.server, task_id, of_script=question.of_script)
