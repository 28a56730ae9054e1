"""What a task's handle needs of whoever follows the session's tasks, so that the two do not import each other.

`Following` is the follower, `TaskHandle` is what is followed.

Passes the updates of one task on to everybody who reads them, without ever waiting for a slow reader.

Each reader has a bounded queue; one that falls behind loses its oldest updates, never the end. Used by the task handle.

The questions of one task: which are open, and how their answers travel.

Stateful servers push questions as requests, so here only the parked ones are known; stateless servers list them in
the task and take answers by `tasks/update`. Each key is answered once. Used by the task handle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Protocol

from taskgate.client.errors import ClientError, DeadlineExceeded, Question, Refused, ServerError
from taskgate.client.options import Generation, Options
from taskgate.client.poller import Watched
from taskgate.client.questions import ELICITATION, Answering
from taskgate.client.results import Task, TaskUpdate


class Followed(Watched, Protocol):
    """One task in somebody's care."""

    @property
    def task_id(self) -> str | None: ...

    @property
    def has_outcome(self) -> bool: ...


class Follower(Protocol):
    """Gives followed tasks their turns, and speaks the `tasks/*` requests for them."""

    @property
    def options(self) -> Options: ...

    @property
    def generation(self) -> Generation: ...

    @property
    def answering(self) -> Answering: ...

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]: ...

    def hurry(self, handle: Followed) -> None: ...

    def hurry_id(self, task_id: str) -> None: ...

    def forget(self, handle: Followed) -> None: ...

    def ended(self, handle: Followed, token: str | None) -> None: ...

    def long_lived(self, handle: Followed) -> None: ...

    def warn(self, update: TaskUpdate) -> None: ...

    async def read_task(self, task_id: str, timeout: float | None = None) -> Task: ...

    async def fetch_result(self, task_id: str, timeout: float, *, long: bool = False) -> dict[str, Any]: ...

    async def update_task(self, task_id: str, answers: Mapping[str, Any]) -> None: ...

    async def cancel_task(self, task_id: str, timeout: float | None = None) -> Task: ...


ROOM = 256


class UpdateReaders:
    """The readers of one task."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: list[asyncio.Queue[TaskUpdate | None]] = []

    def tell(self, update: TaskUpdate | None) -> None:
        """Pass an update on; None is the end."""
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(update)

    async def read(self, patience: float) -> AsyncIterator[TaskUpdate]:
        """Everything told from now on, until the end. `patience` is the longest silence in seconds."""
        queue: asyncio.Queue[TaskUpdate | None] = asyncio.Queue(ROOM)
        self._queues.append(queue)
        try:
            while (update := await self._next(queue, patience)) is not None:
                yield update
        finally:
            self._queues.remove(queue)

    async def _next(self, queue: asyncio.Queue[TaskUpdate | None], patience: float) -> TaskUpdate | None:
        try:
            async with asyncio.timeout(patience):
                return await queue.get()
        except TimeoutError as error:
            raise DeadlineExceeded(f"nothing happened to the task for {patience:g} s") from error


class TaskQuestions:
    """What one task asked, and what was answered."""

    __slots__ = ("_answered", "_answering", "_following", "_task_id", "_tell")

    def __init__(self, following: Follower, task_id: str, tell: Callable[[str | None], None]) -> None:
        self._following, self._task_id, self._tell = following, task_id, tell
        self._answered: set[str] = set()
        self._answering: asyncio.Task[None] | None = None

    def open_ones(self, task: Task | None) -> dict[str, Question]:
        if task is None or task.status.is_terminal:
            return {}
        listed = {key: question for key, question in task.questions.items() if key not in self._answered}
        return listed | self._following.answering.parked(task.task_id)

    def attend(self, task: Task) -> None:
        """Let the callbacks answer what they can of a stateless task's questions."""
        answering = self._following.answering
        ready = {
            key: question
            for key, question in task.questions.items()
            if key not in self._answered and answering.can_answer(question)
        }
        if ready and (self._answering is None or self._answering.done()):
            self._answering = self._following.spawn(self._answer_by_callback(ready))

    async def give(self, answers: Mapping[str, Any]) -> None:
        """Send answers that the program gave."""
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
                else:  # this wire has no way to refuse; the task waits, and the program is told
                    self._answered.add(key)
                    self._tell(f"a question was refused: {error}")
        if answers:
            await self._send(answers)

    async def _send(self, answers: dict[str, dict[str, Any]]) -> None:
        self._answered.update(answers)
        try:
            await self._following.update_task(self._task_id, answers)
        except ClientError:
            self._answered.difference_update(answers)
            raise
        self._following.hurry_id(self._task_id)
