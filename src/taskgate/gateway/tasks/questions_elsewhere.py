"""Ask callers that wait here the questions of tasks that run at other gateways on the same store.

A question waits at the gateway that runs its task. A caller whose `tasks/result` is open at another gateway gets it there as well,
on the stream of that request. The first answer is stored, and the gateway that runs the task finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from msgspec.structs import replace

from taskgate.core.errors import TaskgateError
from taskgate.core.questions.question import Answer
from taskgate.core.tasks.state import TaskState
from taskgate.gateway.events import EventHub, TaskChanged, TaskStreamOpened
from taskgate.gateway.tasks.followers import Followers
from taskgate.gateway.tasks.questions import TaskQuestions, related
from taskgate.gateway.tasks.stored_questions import question_from_store
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.store.operations.task_queries import FindTask, QuestionsOf
from taskgate.telemetry.logs import log

Pushed = tuple[asyncio.Task[Answer], Callable[[], bool]]


class QuestionsElsewhere:
    def __init__(self, records: TaskRecords, questions: TaskQuestions, followers: Followers, events: EventHub) -> None:
        self._records = records
        self._questions = questions
        self._followers = followers
        self._asked: dict[str, dict[str, Pushed]] = {}
        """Questions that were sent on a stream of this gateway, by task and key."""
        self._work: set[asyncio.Task[None]] = set()
        if records.store.shared is not None:
            events.subscribe(TaskStreamOpened, lambda event: self._schedule_update(event.task_id))
            events.subscribe(TaskChanged, lambda event: self._schedule_update(event.task.id))

    def _schedule_update(self, task_id: str) -> None:
        if task_id in self._asked or self._followers.is_awaited(task_id):
            self._in_background(self._update(task_id))

    async def _update(self, task_id: str) -> None:
        """Send the open questions of a task that runs elsewhere, and withdraw those that are settled."""
        try:
            task = await self._records.store.ask(FindTask(task_id))
            elsewhere = task is not None and task.owner != self._records.store.ownership.owner
            asks = task is not None and elsewhere and task.state is TaskState.INPUT_REQUIRED
            still = {asked.key: asked for asked in await self._records.store.ask(QuestionsOf(task_id))} if asks else {}
        except TaskgateError as problem:
            log.info("questions of a task elsewhere could not be read", task=task_id, why=problem.message)
            return
        asked = self._asked.pop(task_id, {})
        for key in asked.keys() - still.keys():
            asked.pop(key)[0].cancel()
        for key, stored in still.items():
            assert task is not None
            if key in asked and not asked[key][1]():
                continue
            question = related(replace(question_from_store(stored, task_id), of_script=task.script), task_id)
            pushed = self._followers.ask_on_waiting(task, question, partial(self._keep, task_id, key))
            if pushed is not None:
                if key in asked:
                    asked[key][0].cancel()
                asked[key] = pushed
                pushed[0].add_done_callback(partial(self._answered, task_id, key))
        if asked:
            self._asked[task_id] = asked

    async def _keep(self, task_id: str, key: str, answer: Answer) -> bool:
        """Store an answer before it is acknowledged. An error leaves the question to the caller's inbox."""
        return answer.result is not None and await self._questions.accept_answer(task_id, key, answer)

    def _answered(self, task_id: str, key: str, done: asyncio.Task[Answer]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._in_background(self._store(task_id, key, done.result()))

    async def _store(self, task_id: str, key: str, answer: Answer) -> None:
        try:
            await self._keep(task_id, key, answer)
        except TaskgateError as problem:
            log.warning("an answer could not be stored", task=task_id, why=problem.message)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        doing = asyncio.get_running_loop().create_task(work)
        self._work.add(doing)
        doing.add_done_callback(self._work.discard)
