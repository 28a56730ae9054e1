"""Questions that arise inside a task. They are stored with it, shown to whoever follows it, and the first answer wins.

A stateless caller sees them in `tasks/get` and answers with `tasks/update`; a stateful one is sent them as requests that name the
task, on any stream it has open. The server that asked waits meanwhile, in a future kept here.

Questions of tasks in the inbox: they are stored with their task, and shown here to a caller that cannot see them there.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.generations import RELATED_TASK, TASKS_EXTENSION, Generation
from taskgate.core.questions import ELICIT, Answer, Question, bare_params, can_answer, not_supported, unanswered
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import InputAsked, InputSettled
from taskgate.core.wire import Raw, raw, with_meta
from taskgate.gateway.events import EventHub, TaskStreamOpened
from taskgate.gateway.questions.activity import Activity
from taskgate.gateway.questions.asker import Asker, Models
from taskgate.gateway.questions.elicitations import UrlElicitations
from taskgate.gateway.questions.waiting import Waiting
from taskgate.gateway.requests.delivery import AskedRound
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.sessions import Keep
from taskgate.gateway.tasks.conversation import Conversations
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.store_answers import TaskQuestion

EXPIRY_S: Final = 600.0
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
        asked = {stored.key: _question_of(stored, task.id) for stored in still if stored.key not in answers}
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


async def keep_answers(records: TaskRecords, task_id: str, given: Mapping[str, Answer]) -> None:
    """Store what of this the task still asks for."""
    task = await records.store.get(task_id)
    keys = tuple(key for key in given if task is not None and key in task.question_keys)
    if keys:
        results = {key: given[key].result for key in keys}
        answers = {key: result for key, result in results.items() if result is not None}
        await records.advance(task_id, InputSettled(keys), answers=answers)


async def keep_round(records: TaskRecords, task_id: str, asked: AskedRound) -> None:
    """Store the answers to one round of a call that became a task, as far as they came."""
    async with asked.keeping:
        await keep_answers(records, task_id, asked.answers)


def related(question: Question, task_id: str) -> Question:
    members = wire.members_of(question.params) if question.params is not None else {}
    put = {RELATED_TASK: wire.raw({"taskId": task_id})}
    return Question(question.method, Raw(wire.join(with_meta(members, put))), question.server, task_id)


def _question_of(stored: TaskQuestion, task_id: str) -> Question:
    params = wire.members_of(stored.request).get("params")
    return Question(stored.method, params, stored.server, task_id, stored.key, restored=True, shown_as=stored.shown_as)


def stored_question(key: str, question: Question, now_ms: int, expiry_s: float = EXPIRY_S) -> TaskQuestion:
    drop = ("elicitationId",) if question.method == ELICIT else ()
    embedded = {"method": question.method, "params": bare_params(question.params, drop)}
    return TaskQuestion(
        key,
        question.server,
        question.method,
        wire.encode(embedded),
        now_ms + int(expiry_s * 1000),
        now_ms,
        shown_as=question.shown_as,
    )


def asked_message(first: Question) -> str:
    said = first.decoded().get("message")
    what = said if type(said) is str and said else f"an answer to {first.method}"
    return f"{first.server} asks: {what}"[:500]


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
        if not question.shared and _sees_it_natively(task, declared, question):
            return _nothing
        waits = self._asker.may_wait(question)
        if self._models.answer_for(question) and not (waits and self._asker.attended(task.asked_in)):
            self._activity.spawn(self._by_model(task, question, answered))
            return _nothing
        if not waits:
            return _nothing
        inbox = self._activity.inbox
        keep = partial(self._keep_answer, task.id, question.key or "")
        waiting = inbox.put(task.asked_in, question, answered, task_id=task.id, keep_answer=keep)
        return (lambda: inbox.withdraw(waiting)) if waiting is not None else _nothing

    async def _by_model(self, task: Task, question: Question, answered: Callable[[Answer], bool]) -> None:
        answered(await self._models.answer(question, task.principal))

    async def adopt(self, task: Task, request: Request) -> None:
        """The call became a task while questions of it waited: the task shows them from now on. What of its last round was
        answered already is stored with it, too: after a crash nobody is asked for that again.
        """
        waiting, asked = self._activity.inbox.of_request(request), request.delivery.asked_round
        of_round = {one.key: one.id for one in waiting if asked is not None and one.key in asked.asked}
        for one in waiting:
            one.now_of_task(task.id, partial(self._keep_answer, task.id, one.key or one.id))
        if asked is not None:
            await self._adopt_round(task, asked, of_round)
        for one in waiting:
            if one.key not in of_round:
                await self._show(task, one)

    async def _adopt_round(self, task: Task, asked: AskedRound, shown: Mapping[str | None, str]) -> None:
        now_ms = self._records.store.now_ms()
        stored = tuple(
            stored_question(key, replace(question, shown_as=shown.get(key)), now_ms)
            for key, question in asked.asked.items()
        )
        still = [question for key, question in asked.asked.items() if key not in asked.answers]
        message = asked_message(still[0]) if still else None
        state = None if asked.sent else asked.state
        event = InputAsked(tuple(asked.asked), message, state, ends_round=not asked.sent)
        if await self._records.advance(task.id, event, questions=stored) is not None:
            asked.follow(partial(keep_round, self._records, task.id, asked), self._activity.spawn)
            await keep_round(self._records, task.id, asked)

    async def _keep_answer(self, task_id: str, key: str, answer: Answer) -> None:
        await keep_answers(self._records, task_id, {key: answer})

    async def _show(self, task: Task, waiting: Waiting) -> None:
        question = Question(waiting.method, raw(waiting.params), waiting.server, task.id, shown_as=waiting.id)
        key = waiting.key or waiting.id
        stored = stored_question(key, question, self._records.store.now_ms())
        event = InputAsked((key,), asked_message(question))
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
