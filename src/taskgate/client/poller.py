"""One scheduler for everything a session has to look at again: a heap of due times, one timer, a few workers.

It knows when, not what: each watched thing has an `async tick()` that returns the seconds until its next turn, or
None when it needs no more. Ten thousand things cost one timer and at most `concurrency` asyncio tasks. Owned by
the session.

How long to put up with failing polls of one task, and how long to wait between them.

Counts failures in a row; says either how many seconds to wait or with which error to give the task up. Used by the
task handle.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from math import ceil
from typing import Any, Protocol

from taskgate import clock
from taskgate.client.errors import (
    ClientError,
    DeadlineExceeded,
    HttpRefusal,
    InvalidReply,
    Question,
    Refused,
    ServerError,
    ServerUnreachable,
    Unauthorized,
)
from taskgate.client.questions import ELICITATION, Answering
from taskgate.client.results import Generation, Options, Task, TaskUpdate

LEAST_INTERVAL, GREATEST_INTERVAL = 0.25, 60.0
# With so many things watched, turns that are due within the same moment (seconds) are taken together: one timer instead of
# a thousand a second.
CROWD, MOMENT = 500, 0.05
_log = logging.getLogger("taskgate.client")


class Watched(Protocol):
    """Something that wants turns."""

    async def tick(self) -> float | None: ...


class Poller:
    """Gives each watched thing its turns."""

    def __init__(self, concurrency: int = 32) -> None:
        self._loop = asyncio.get_running_loop()
        self._concurrency = concurrency
        self._heap: list[tuple[float, int, Watched]] = []
        self._current: dict[Watched, int] = {}
        self._numbers = itertools.count(1)
        self._ready: deque[tuple[int, Watched]] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    def __len__(self) -> int:
        return len(self._current)

    def watch(self, thing: Watched, delay: float) -> None:
        """Give `thing` a turn after `delay` seconds; an earlier appointment of the same thing is void."""
        number = next(self._numbers)
        self._current[thing] = number
        due = clock.monotonic() + delay
        heapq.heappush(self._heap, (due, number, thing))
        self._drop_void_entries()
        if self._timer is None or due < self._timer_due:
            self._arm(due)

    def forget(self, thing: Watched) -> None:
        self._current.pop(thing, None)

    async def close(self) -> None:
        self._current.clear()
        if self._timer is not None:
            self._timer.cancel()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if len(self._current) > CROWD:
            due = ceil(due / MOMENT) * MOMENT
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            _, number, thing = heapq.heappop(self._heap)
            if self._current.get(thing) == number:
                self._ready.append((number, thing))
        for _ in range(min(len(self._ready), self._concurrency - len(self._workers))):
            worker = asyncio.create_task(self._work(), name="taskgate-client-poller")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        if self._heap:
            self._arm(self._heap[0][0])

    async def _work(self) -> None:
        while self._ready:
            number, thing = self._ready.popleft()
            if self._current.get(thing) != number:
                continue
            try:
                delay = await thing.tick()
            except Exception:  # around one turn: one broken thing must not stop the others
                _log.exception("a turn of the poller failed")
                delay = GREATEST_INTERVAL
            if self._current.get(thing) != number:
                continue  # forgotten, or given another appointment meanwhile
            if delay is None:
                self.forget(thing)
            else:
                self.watch(thing, delay)

    def _drop_void_entries(self) -> None:
        """Hurried and forgotten things leave entries behind; keep the heap in proportion to what is watched."""
        if len(self._heap) > 2 * len(self._current) + 64:
            self._heap = [entry for entry in self._heap if self._current.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)


def next_delay(interval_ms: int | None, default: float, *, pushed: bool = False) -> float:
    """Seconds until the next look at a task: what the server asked for, within bounds, a little spread out.

    The spread only ever lengthens the wait, because polling faster than asked is impolite. Where the server pushes its
    status by itself (`pushed`) only a slow safety poll stays.
    """
    interval = default if interval_ms is None else interval_ms / 1000
    interval = min(max(interval, LEAST_INTERVAL), GREATEST_INTERVAL)
    if pushed:
        interval = min(interval * 3, GREATEST_INTERVAL)
    return interval * random.uniform(1.0, 1.1)


def back_off(interval: float, failures: int, retry_after: float | None) -> float:
    """Seconds until the next try after `failures` failures in a row."""
    grown = min(interval * 2.0 ** min(failures, 10), GREATEST_INTERVAL) * random.uniform(0.8, 1.2)
    return max(grown, retry_after or 0.0)


# A reply that makes no sense is asked for again this often: it may have been a passing proxy, it may be a liar.
RUBBISH_LIMIT = 3
_HOPELESS = (-32601, -32021)


class Patience:
    """What has gone wrong lately with one task."""

    __slots__ = ("_failures", "_options", "_rubbish", "_since")

    def __init__(self, options: Options) -> None:
        self._options = options
        self._failures = self._rubbish = 0
        self._since = 0.0

    def restored(self) -> None:
        """A poll went well."""
        self._failures = self._rubbish = 0

    def after(self, error: ClientError, task_id: str, poll_interval: int | None) -> float | ClientError:
        """Seconds until the next try, or the error that ends the trying."""
        if isinstance(error, Unauthorized) or (isinstance(error, ServerError) and error.code in _HOPELESS):
            return error
        if isinstance(error, InvalidReply):
            self._rubbish += 1
            if self._rubbish >= RUBBISH_LIMIT:
                return error
        now, limit = clock.monotonic(), self._options.give_up_after
        self._since = self._since if self._failures else now
        self._failures += 1
        if now - self._since >= limit:
            return ServerUnreachable(task_id, f"no word about task {task_id} for {limit:g} s: {error}")
        interval = next_delay(poll_interval, self._options.default_poll_interval)
        wait = back_off(interval, self._failures, error.retry_after if isinstance(error, HttpRefusal) else None)
        return min(wait, max(1.0, limit / 4))


# What a task's handle needs of whoever follows the session's tasks, so that the two do not import each other.
#
# `Following` is the follower, `TaskHandle` is what is followed.
#
# Passes the updates of one task on to everybody who reads them, without ever waiting for a slow reader.
#
# Each reader has a bounded queue; one that falls behind loses its oldest updates, never the end. Used by the task
# handle.
#
# The questions of one task: which are open, and how their answers travel.
#
# Stateful servers push questions as requests, so here only the parked ones are known; stateless servers list them in
# the task and take answers by `tasks/update`. Each key is answered once. Used by the task handle.


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
