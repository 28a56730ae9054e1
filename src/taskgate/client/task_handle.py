"""One task of a server, followed to its end.

A handle keeps what is known (a terminal status is final, whatever the server says later), tells it to `updates()`,
answers the task's questions and fetches the result. The session makes handles; the poller gives them turns;
notifications feed them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from taskgate.client.errors import (
    ClientError,
    DeadlineExceeded,
    InputNeeded,
    InvalidReply,
    Refused,
    ServerError,
    ServerUnreachable,
    SessionClosed,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskVanished,
    Unauthorized,
)
from taskgate.client.options import Generation, OnProgress
from taskgate.client.poller import back_off, next_delay
from taskgate.client.results import IMMEDIATE_RESPONSE, Progress, Question, Task, TaskStatus, TaskUpdate, ToolResult

if TYPE_CHECKING:
    from taskgate.client.session import Session

UNKNOWN_TASK = -32602
# How many updates a slow reader may fall behind before the oldest are dropped.
READER_ROOM = 256
POLL_TIMEOUT = 30.0
RUBBISH_LIMIT = 3
# A task that was looked at this often without an end is worth a push subscription.
LONG_LIVED_TURNS = 2


class TaskHandle:
    """Follow, answer, cancel and collect one task. `task_id` is None if the server answered at once, without a task."""

    def __init__(
        self, session: Session, task: Task | None, *, token: str | None = None, on_progress: OnProgress | None = None
    ) -> None:
        self._session = session
        self._task = task
        self._token = token
        self._on_progress = on_progress
        self._progress: Progress | None = None
        self._readers: list[asyncio.Queue[TaskUpdate | None]] = []
        self._ended = asyncio.Event()
        self._failure: ClientError | None = None
        self._outcome: ToolResult | None = None
        self._fetching: asyncio.Task[ToolResult] | None = None
        self._answering: asyncio.Task[None] | None = None
        self._answered: set[str] = set()
        self._failures = self._rubbish = 0
        self._failing_since = 0.0
        self._pushed = self._warned = False
        self._begun = time.monotonic()
        self._turns = 0
        self.contradictions = 0
        self.immediate_response: str | None = None

    @classmethod
    def answered(cls, session: Session, result: ToolResult) -> TaskHandle:
        """A handle for a call that the server answered without making a task."""
        handle = cls(session, None)
        handle._outcome = result
        handle._ended.set()
        return handle

    @property
    def task_id(self) -> str | None:
        return self._task.task_id if self._task is not None else None

    @property
    def task(self) -> Task | None:
        """The latest reading."""
        return self._task

    @property
    def status(self) -> TaskStatus:
        if self._task is None:
            return TaskStatus.FAILED if self._outcome is not None and self._outcome.is_error else TaskStatus.COMPLETED
        return self._task.status

    @property
    def questions(self) -> Mapping[str, Question]:
        """What waits for `answer()`, by key."""
        if self._task is None or self._task.status.is_terminal:
            return {}
        open_ones = {key: q for key, q in self._task.questions.items() if key not in self._answered}
        return open_ones | self._session.answering.parked(self._task.task_id)

    @property
    def expires_in(self) -> float | None:
        """Seconds until the server may forget the task, as far as this client can tell."""
        if self._task is None or self._task.ttl is None:
            return None
        return self._begun + self._task.ttl / 1000 - time.monotonic()

    async def updates(self) -> AsyncIterator[TaskUpdate]:
        """The present state, then everything that happens, until the task has ended. Raises what `result()` would raise
        if the task was lost rather than ended."""
        reader: asyncio.Queue[TaskUpdate | None] = asyncio.Queue(READER_ROOM)
        yield self._update()
        if self._ended.is_set():
            return
        self._readers.append(reader)
        try:
            while (update := await self._next(reader)) is not None:
                yield update
        finally:
            self._readers.remove(reader)
        if self._failure is not None:
            raise self._failure

    async def result(self, timeout: float | None = None) -> ToolResult:
        """Wait for the end and return what the tool returned. A tool that reported an error gives a result with
        `is_error`; a task that failed otherwise, was cancelled or was lost raises.
        """
        limit = self._session.options.task_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        try:
            async with asyncio.timeout(limit):
                await self._ended.wait()
        except TimeoutError as error:
            raise DeadlineExceeded(f"task {self.task_id} did not end within {limit:g} s") from error
        if self._outcome is not None:
            return self._outcome
        if self._failure is not None:
            raise self._failure
        return await self._collect(max(1.0, deadline - time.monotonic()))

    async def cancel(self) -> Task | None:
        """Ask the server to stop the task; returns the state after that. Cancelling an ended task changes nothing."""
        if self._task is None or self._ended.is_set():
            return self._task
        try:
            task = await self._session.cancel_task(self._task.task_id)
        except ServerError as error:
            if error.code != UNKNOWN_TASK:
                raise
            task = await self._session.get_task(self._task.task_id)  # it may have ended a moment before
        self.observe(task)
        if not self._ended.is_set():
            self._session.hurry(self)
        return self._task

    async def answer(self, answers: Mapping[str, Mapping[str, Any]] | Mapping[str, Any]) -> None:
        """Answer questions: either `{key: answer, ...}` or, if exactly one is open, just its answer."""
        open_ones = self.questions
        if "action" in answers or "role" in answers or "roots" in answers:
            if len(open_ones) != 1:
                raise InputNeeded(open_ones, f"{len(open_ones)} questions are open: say which key is answered")
            answers = {next(iter(open_ones)): answers}
        unknown = [key for key in answers if key not in open_ones]
        if unknown:
            raise InputNeeded(open_ones, f"no open question has the key {unknown[0]!r}")
        by_update = {key: dict(value) for key, value in answers.items() if not self._session.answering.give(key, value)}
        if by_update:
            await self._send_answers(by_update)

    # What the session, the poller and the notifications call.

    def observe(self, task: Task, *, pushed: bool = False) -> None:
        """Take a new reading of the task."""
        old = self._task
        if old is not None and task.task_id != old.task_id:
            raise InvalidReply(f"the server answered about task {task.task_id} when asked about {old.task_id}")
        if self._ended.is_set():
            if task.status is not self.status:
                self.contradictions += 1
            return
        self._pushed = self._pushed or pushed
        self._task = task
        if (
            old is None
            or (task.status, task.message) != (old.status, old.message)
            or task.questions.keys() - old.questions.keys()
        ):
            self._tell(self._update())
        if task.status.is_terminal:
            self._end(task)
        elif task.status is TaskStatus.INPUT_REQUIRED:
            self._attend(task)

    def report(self, progress: Progress) -> None:
        """Take a progress notification that carried this task's token."""
        if self._ended.is_set():
            return
        self._progress = progress
        self._tell(self._update())
        if self._on_progress is not None:
            self._on_progress(progress)

    def parked(self) -> None:
        """A question of this task waits for `answer()`."""
        self._tell(self._update())

    @property
    def has_outcome(self) -> bool:
        """Whether nothing about this task needs to be fetched any more."""
        return self._outcome is not None or self._failure is not None

    def abandon(self) -> None:
        """The session closes; the task itself lives on at the server."""
        self.lose(SessionClosed(f"the session was closed while task {self.task_id} was followed"))

    def lose(self, failure: ClientError) -> None:
        """End without an end: the task's fate is not known, or it is gone."""
        if not self._ended.is_set():
            self._failure = failure
            self._finish()

    async def tick(self) -> float | None:
        """One turn: look at the task, or warn that it is about to expire."""
        if self._ended.is_set():
            return self._watch_expiry()
        try:
            assert self._task is not None
            self.observe(await self._session.read_task(self._task.task_id, POLL_TIMEOUT))
        except ClientError as error:
            return self._after_failure(error)
        self._failures = self._rubbish = 0
        self._accept_early_result()
        if self._ended.is_set():
            return self._watch_expiry()
        self._turns += 1
        if self._turns == LONG_LIVED_TURNS:
            self._session.long_lived(self)
        return self._bounded(
            next_delay(self._task.poll_interval, self._session.options.default_poll_interval, pushed=self._pushed)
        )

    def not_found(self) -> ClientError:
        """Why the server no longer knows this task."""
        remaining = self.expires_in
        if remaining is not None and remaining <= self._session.options.expiry_grace:
            return TaskExpired(str(self.task_id), f"task {self.task_id} expired before its result was collected")
        return TaskVanished(str(self.task_id), f"the server no longer knows task {self.task_id}")

    def assume_created(self, task: Task) -> None:
        """For a resumed task: its life began before this process knew it."""
        try:
            created = datetime.fromisoformat(task.created_at or "")
        except ValueError:
            return
        age = (datetime.now(UTC) - (created if created.tzinfo else created.replace(tzinfo=UTC))).total_seconds()
        self._begun = time.monotonic() - max(0.0, age)

    def _accept_early_result(self) -> None:
        """A result that came counts as the end, even from a server that goes on saying it is working."""
        fetching = self._fetching
        if (
            self._ended.is_set()
            or fetching is None
            or not fetching.done()
            or fetching.cancelled()
            or fetching.exception()
        ):
            return
        self._outcome = fetching.result()
        self.contradictions += 1
        self._finish()

    def _after_failure(self, error: ClientError) -> float | None:
        options = self._session.options
        self._accept_early_result()
        if isinstance(error, ServerError) and error.code == UNKNOWN_TASK:
            self.lose(self.not_found())
        elif isinstance(error, Unauthorized) or (isinstance(error, ServerError) and error.code in (-32601, -32021)):
            self.lose(error)
        elif isinstance(error, InvalidReply):
            self._rubbish += 1
            if self._rubbish >= RUBBISH_LIMIT:
                self.lose(error)
        if self._ended.is_set():
            return None
        now = time.monotonic()
        self._failing_since = self._failing_since if self._failures else now
        self._failures += 1
        if now - self._failing_since >= options.give_up_after:
            self.lose(
                ServerUnreachable(
                    str(self.task_id), f"no word about task {self.task_id} for {options.give_up_after:g} s: {error}"
                )
            )
            return None
        interval = next_delay(self._task.poll_interval if self._task else None, options.default_poll_interval)
        return min(
            back_off(interval, self._failures, getattr(error, "retry_after", None)), max(1.0, options.give_up_after / 4)
        )

    def _attend(self, task: Task) -> None:
        """The task waits for input: see to it that its questions reach us, or answer those we have."""
        if self._session.generation is Generation.STATEFUL:
            if self._fetching is None or (self._fetching.done() and self._fetching.exception() is not None):
                # Stateful servers deliver a task's questions only while somebody waits for its result.
                self._fetching = self._session.spawn(self._wait_for_result(task.task_id))
            return
        mine = [question for key, question in task.questions.items() if key not in self._answered]
        ready = {q.key: q for q in mine if self._session.answering.can_answer(q)}
        if ready and (self._answering is None or self._answering.done()):
            self._answering = self._session.spawn(self._answer_by_callback(ready))

    async def _wait_for_result(self, task_id: str) -> ToolResult:
        result = ToolResult(await self._session.fetch_result(task_id, self._session.options.task_timeout, long=True))
        self._session.hurry(self)  # learn the final status too: it tells a crash from an empty result
        return result

    async def _answer_by_callback(self, questions: Mapping[str, Question]) -> None:
        answers: dict[str, dict[str, Any]] = {}
        for key, question in questions.items():
            try:
                answers[key] = await self._session.answering.answer(question)
            except (Refused, ServerError) as error:
                if question.method == "elicitation/create":
                    answers[key] = {"action": "cancel"}
                else:  # this wire has no way to refuse; the task waits, and the caller is told
                    self._answered.add(key)
                    self._tell(self._update(warning=f"a question was refused: {error}"))
        if answers and not self._ended.is_set():
            await self._send_answers(answers)

    async def _send_answers(self, answers: dict[str, dict[str, Any]]) -> None:
        self._answered.update(answers)
        try:
            await self._session.update_task(str(self.task_id), answers)
        except ClientError:
            self._answered.difference_update(answers)
            raise
        self._session.hurry(self)

    def _end(self, task: Task) -> None:
        if task.status is TaskStatus.CANCELLED:
            self._failure = TaskCancelled(task.task_id, f"task {task.task_id} was cancelled" + _detail(task))
        elif self._session.generation is Generation.STATELESS:
            self._read_inline(task)
        self._finish()

    def _read_inline(self, task: Task) -> None:
        if task.status is TaskStatus.COMPLETED and task.result is not None:
            self._outcome = ToolResult(dict(task.result))
        elif task.status is TaskStatus.FAILED and task.error is not None:
            code = task.error.get("code")
            self._failure = ServerError(
                code if isinstance(code, int) else 0, str(task.error.get("message")), task.error.get("data")
            )
        elif task.status is TaskStatus.FAILED:
            self._failure = TaskFailed(task.task_id, f"task {task.task_id} failed" + _detail(task))
        else:
            self._failure = InvalidReply(f"the server says task {task.task_id} is completed but gives no result")

    def _finish(self) -> None:
        self._ended.set()
        for reader in self._readers:
            _put(reader, None)
        self._session.task_ended(self, self._token)

    async def _collect(self, timeout: float) -> ToolResult:
        """Fetch the result of an ended stateful task, once, however many ask."""
        task = self._task
        assert task is not None
        timeout = min(timeout, self._session.options.request_timeout)
        if self._fetching is None:
            self._fetching = self._session.spawn(self._fetch(task.task_id))
        done, _ = await asyncio.wait({self._fetching}, timeout=timeout)
        if not done:
            self._fetching.cancel()
            self._fetching = None
            raise DeadlineExceeded(
                f"the server says task {task.task_id} is {task.status} but does not hand over its result"
            )
        try:
            fetched = self._fetching.result()
        except ServerError as error:
            raise (
                self.not_found() if error.code == UNKNOWN_TASK and task.status is TaskStatus.COMPLETED else error
            ) from error
        except ClientError:
            self._fetching = None  # the line broke; the next result() may try again
            raise
        if task.status is TaskStatus.FAILED and not fetched.is_error and not fetched.content:
            raise TaskFailed(task.task_id, f"task {task.task_id} failed" + _detail(task))
        self._outcome = fetched
        self._session.forget(self)
        return fetched

    async def _fetch(self, task_id: str) -> ToolResult:
        return ToolResult(await self._session.fetch_result(task_id, self._session.options.request_timeout))

    def _watch_expiry(self) -> float | None:
        """Warn once when the time left gets short; returns when to look again, for an ended task with its result
        uncollected.
        """
        remaining = self.expires_in
        if (
            remaining is None
            or self._task is None
            or self._task.ttl is None
            or self._warned
            or self._outcome
            or self._failure
        ):
            return None
        warn_at = min(self._session.options.expiry_warning, self._task.ttl / 1000 * 0.2)
        if remaining > warn_at:
            return remaining - warn_at
        self._warned = True
        update = self._update(warning=f"task {self.task_id} expires in {max(0.0, remaining):.0f} s")
        self._tell(update)
        self._session.warn(update)
        return None

    def _bounded(self, delay: float) -> float:
        """Never sleep past the moment a warning is due."""
        look_again = self._watch_expiry()
        return delay if look_again is None else min(delay, max(look_again, 0.05))

    def _update(self, warning: str | None = None) -> TaskUpdate:
        task, progress = self._task, self._progress
        if task is None:
            return TaskUpdate("", self.status)
        return TaskUpdate(
            task.task_id,
            task.status,
            task.message or (progress.message if progress else None),
            progress.progress if progress else None,
            progress.total if progress else None,
            self.questions,
            self.expires_in,
            warning,
            task.raw,
        )

    def _tell(self, update: TaskUpdate) -> None:
        for reader in self._readers:
            _put(reader, update)

    async def _next(self, reader: asyncio.Queue[TaskUpdate | None]) -> TaskUpdate | None:
        limit = self._session.options.task_timeout
        try:
            async with asyncio.timeout(limit):
                return await reader.get()
        except TimeoutError as error:
            raise DeadlineExceeded(f"nothing happened to task {self.task_id} for {limit:g} s") from error

    def read_immediate_response(self, result: Mapping[str, Any]) -> None:
        """Keep what the server suggests telling the model while the task runs."""
        meta = result.get("_meta")
        text = meta.get(IMMEDIATE_RESPONSE) if isinstance(meta, Mapping) else None
        self.immediate_response = text if isinstance(text, str) else None


def _put(reader: asyncio.Queue[TaskUpdate | None], update: TaskUpdate | None) -> None:
    if reader.full():
        reader.get_nowait()
    reader.put_nowait(update)


def _detail(task: Task) -> str:
    return f": {task.message}" if task.message else ""
