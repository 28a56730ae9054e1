"""Follow one task of a server until it ends.

A handle stores the latest state (a terminal status is final, even if the server later reports another), passes changes to
`updates()`, answers the task's questions and fetches the result. `Following` creates handles, polls them and forwards
notifications.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from taskgate import clock
from taskgate.client.errors import (
    ClientError,
    DeadlineExceeded,
    InputNeeded,
    InvalidReply,
    Question,
    ServerError,
    SessionClosed,
    TaskError,
)
from taskgate.client.follower import Follower
from taskgate.client.options import Generation, OnProgress
from taskgate.client.poll_delays import PollFailures, next_delay
from taskgate.client.results import (
    IMMEDIATE_RESPONSE,
    PendingApproval,
    Progress,
    Task,
    TaskStatus,
    TaskUpdate,
    ToolResult,
)
from taskgate.client.task_ending import UNKNOWN_TASK, Expiry, checked, ending_of, gone
from taskgate.client.task_questions import TaskQuestions
from taskgate.client.update_readers import UpdateReaders

POLL_TIMEOUT = 30.0
# Subscribe to a task after this many polls, or at once if its poll interval is at least this long.
LONG_LIVED_TURNS, LONG_INTERVAL_MS = 2, 1000


class TaskHandle:
    """Follow, answer, cancel and collect one task. `task_id` is None if the server answered at once, without a task."""

    def __init__(
        self,
        following: Follower,
        task: Task | None,
        *,
        token: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._following, self._task = following, task
        self._token, self._on_progress = token, on_progress
        self._progress: Progress | None = None
        self._message = task.message if task else None
        self._readers, self._expiry = UpdateReaders(), Expiry()
        self._poll_failures = PollFailures(following.options)
        self._questions = TaskQuestions(following, task.task_id if task else "", self._publish)
        self._ended = asyncio.Event()
        self._outcome: ToolResult | ClientError | None = None
        self._fetching: asyncio.Task[ToolResult] | None = None
        self._pushed, self._turns = False, 0
        self.contradictions = 0
        self.immediate_response: str | None = None
        self.approval: PendingApproval | None = None
        """The approval that the call waited for when it became a task."""

    @classmethod
    def answered(cls, following: Follower, result: ToolResult) -> TaskHandle:
        """Return a handle for a call that the server answered without a task."""
        handle = cls(following, None)
        handle._outcome = result
        handle._ended.set()
        return handle

    @property
    def task_id(self) -> str | None:
        return self._task.task_id if self._task is not None else None

    @property
    def task(self) -> Task | None:
        """The latest known state."""
        return self._task

    @property
    def status(self) -> TaskStatus:
        if self._task is None:
            failed = isinstance(self._outcome, ToolResult) and self._outcome.is_error
            return TaskStatus.FAILED if failed else TaskStatus.COMPLETED
        return self._task.status

    @property
    def questions(self) -> Mapping[str, Question]:
        """Open questions for `answer()`, by key."""
        return self._questions.open_ones(self._task)

    @property
    def expires_in(self) -> float | None:
        """Seconds until the server may delete the task, as far as known."""
        return self._expiry.remaining(self._task)

    async def updates(self) -> AsyncIterator[TaskUpdate]:
        """Yield the current state, then every change until the task ends. Raises like `result()` if the task is lost."""
        yield self._update()
        if not self._ended.is_set():
            async for update in self._readers.read(self._following.options.task_timeout):
                yield update
        if isinstance(self._outcome, ClientError) and not self.status.is_terminal:
            raise self._outcome

    async def result(self, timeout: float | None = None) -> ToolResult:
        """Wait until the task ends, and return the tool's result.

        An error of the tool is a result with `is_error`. Raises if the task failed otherwise, was cancelled or is lost.
        """
        limit = self._following.options.task_timeout if timeout is None else timeout
        deadline = clock.monotonic() + limit
        try:
            async with asyncio.timeout(limit):
                await self._ended.wait()
        except TimeoutError as error:
            raise DeadlineExceeded(f"task {self.task_id} did not end within {limit:g} s") from error
        if self._outcome is None:
            try:
                self._outcome = await self._collect(max(1.0, deadline - clock.monotonic()))
            except (ServerError, TaskError) as error:  # other errors are temporary: a later call may succeed
                self._outcome = error
            self._following.forget(self)
        if isinstance(self._outcome, ClientError):
            raise self._outcome
        return self._outcome

    async def cancel(self) -> Task | None:
        """Cancel the task, and return its state afterwards. Cancelling an ended task has no effect."""
        if self._task is None or self._ended.is_set():
            return self._task
        try:
            task = await self._following.cancel_task(self._task.task_id)
        except ServerError as error:
            if error.code != UNKNOWN_TASK:
                raise
            task = await self._following.read_task(self._task.task_id)  # it may have ended meanwhile
        self.observe(task)
        if not self._ended.is_set():
            self._following.poll_now(self)
        return self._task

    async def answer(self, answers: Mapping[str, Any]) -> None:
        """Answer questions: `{key: answer, ...}`, or only the answer if exactly one is open. Raises InputNeeded."""
        open_ones = self.questions
        if answers.keys() & {"action", "role", "roots"} and not answers.keys() & open_ones.keys():
            if len(open_ones) != 1:
                raise InputNeeded(open_ones, f"{len(open_ones)} questions are open: pass {{key: answer}}")
            answers = {next(iter(open_ones)): answers}
        for key in answers:
            if key not in open_ones:
                raise InputNeeded(open_ones, f"no open question has the key {key!r}")
        await self._questions.give(answers)

    @property
    def has_outcome(self) -> bool:
        """Whether the result or error of the task is known."""
        return self._outcome is not None

    def observe(self, task: Task, *, pushed: bool = False) -> None:
        """Update the handle with a new state. Raises InvalidReply for another task id."""
        old = self._task
        if old is not None and task.task_id != old.task_id:
            raise InvalidReply(f"the server returned task {task.task_id} for a request about {old.task_id}")
        if self._ended.is_set():
            self.contradictions += task.status is not self.status
            return
        self._pushed = self._pushed or pushed
        self._task = task
        if old is None or task.message != old.message:
            self._message = task.message
        if (
            old is None
            or (task.status, task.message) != (old.status, old.message)
            or task.questions.keys() - old.questions
        ):
            self._publish()
        if task.progress is not None and task.progress != self._progress and not task.status.is_terminal:
            self.report(task.progress)
        if task.status.is_terminal:
            self._outcome = ending_of(task, self._following.generation)
            self._finish()
        elif task.status is TaskStatus.INPUT_REQUIRED:
            self._deliver_questions(task)

    def report(self, progress: Progress) -> None:
        """Take a progress notification with this task's token."""
        if not self._ended.is_set():
            self._progress = progress
            self._message = progress.message or self._message
            self._publish()
            if self._on_progress is not None:
                self._on_progress(progress)

    def parked(self) -> None:
        """Notify readers that a question of this task was parked for `answer()`."""
        self._publish()

    def lose(self, failure: ClientError) -> None:
        """End the handle with an error, because the task is lost or deleted."""
        if not self._ended.is_set():
            self._outcome = failure
            self._finish()

    def abandon(self) -> None:
        """End the handle because the session closes; the task continues at the server."""
        self.lose(SessionClosed(f"the session was closed while task {self.task_id} was followed"))

    def resumed(self, task: Task) -> None:
        """Count the ttl of a resumed task from its creation time."""
        self._expiry.began_at(task.created_at)

    def suggested(self, result: Mapping[str, Any]) -> None:
        """Store the text for the model and the pending approval from the metadata of the created task."""
        meta = result.get("_meta")
        if isinstance(meta, Mapping):
            text = meta.get(IMMEDIATE_RESPONSE)
            self.immediate_response = text if isinstance(text, str) else None
            self.approval = PendingApproval.in_meta(meta)

    async def tick(self) -> float | None:
        """Poll the task, or warn that it is about to expire. Returns the seconds until the next poll."""
        task = self._task
        if task is None or self._ended.is_set():
            return self._watch_expiry()
        try:
            self.observe(await self._following.read_task(task.task_id, POLL_TIMEOUT))
        except ClientError as error:
            return self._after_failure(error, task)
        self._poll_failures.restored()
        self._accept_early_result()
        expires_in = self._watch_expiry()
        if self._ended.is_set():
            return expires_in
        self._turns += 1
        if self._turns == LONG_LIVED_TURNS:
            self._following.long_lived(self)
        interval = self._task.poll_interval if self._task else None
        delay = next_delay(interval, self._following.options.default_poll_interval, pushed=self._pushed)
        return delay if expires_in is None else min(delay, max(expires_in, 0.05))

    def _after_failure(self, error: ClientError, task: Task) -> float | None:
        self._accept_early_result()
        if isinstance(error, ServerError) and error.code == UNKNOWN_TASK:
            self.lose(self._gone(task))
        if self._ended.is_set():
            return None
        verdict = self._poll_failures.after(error, task.task_id, task.poll_interval)
        if isinstance(verdict, ClientError):
            self.lose(verdict)
            return None
        return verdict

    def _deliver_questions(self, task: Task) -> None:
        """Answer the questions of a stateless task, or open the request that makes a stateful server send them."""
        if self._following.generation is Generation.STATELESS:
            self._questions.attend(task)
        elif self._fetching is None or (self._fetching.done() and _failed(self._fetching)):
            # Stateful servers send the questions of a task only while tasks/result is open.
            self._fetching = self._following.spawn(self._wait_for_result(task.task_id))

    async def _wait_for_result(self, task_id: str) -> ToolResult:
        fetched = await self._following.fetch_result(task_id, self._following.options.task_timeout, long=True)
        self._following.poll_now(self)  # fetch the final status, which distinguishes a failure from an empty result
        return ToolResult(fetched)

    async def _fetch(self, task_id: str) -> ToolResult:
        return ToolResult(await self._following.fetch_result(task_id, self._following.options.request_timeout))

    def _accept_early_result(self) -> None:
        """End the task if its result has arrived, even if the server still reports it as working."""
        fetching = self._fetching
        if not self._ended.is_set() and fetching is not None and fetching.done() and not _failed(fetching):
            self._outcome = fetching.result()
            self.contradictions += 1
            self._finish()

    async def _collect(self, timeout: float) -> ToolResult:
        """Fetch the result of an ended stateful task, once for all callers."""
        task = self._task
        assert task is not None
        if self._fetching is None:
            self._fetching = self._following.spawn(self._fetch(task.task_id))
        fetching = self._fetching
        done, _ = await asyncio.wait({fetching}, timeout=min(timeout, self._following.options.request_timeout))
        if not done:
            fetching.cancel()
            self._fetching = None
            raise DeadlineExceeded(f"task {task.task_id} is {task.status}, but the server did not return its result")
        try:
            return checked(task, fetching.result())
        except ServerError as error:
            unknown = error.code == UNKNOWN_TASK and task.status is TaskStatus.COMPLETED
            raise (self._gone(task) if unknown else error) from error
        except ClientError:
            self._fetching = None  # connection error; the next result() retries
            raise

    def _finish(self) -> None:
        self._ended.set()
        self._readers.publish(None)
        self._following.ended(self, self._token)

    def _gone(self, task: Task) -> ClientError:
        return gone(task.task_id, self.expires_in, self._following.options.expiry_grace)

    def _watch_expiry(self) -> float | None:
        """Warn once when the task is about to expire. Returns the seconds until the warning, or None."""
        if self.has_outcome:
            return None
        wait = self._expiry.until_warning(self._task, self._following.options.expiry_warning)
        if wait is None or wait > 0:
            return wait
        self._expiry.note_warning()
        update = self._update(f"task {self.task_id} expires in {max(0.0, self.expires_in or 0.0):.0f} s")
        self._readers.publish(update)
        self._following.warn(update)
        return None

    def _publish(self, warning: str | None = None) -> None:
        self._readers.publish(self._update(warning))

    def _update(self, warning: str | None = None) -> TaskUpdate:
        task, progress = self._task, self._progress or Progress(0.0)
        if task is None:
            return TaskUpdate("", self.status)
        return TaskUpdate(
            task_id=task.task_id,
            status=task.status,
            message=self._message,
            progress=progress.progress if self._progress else None,
            total=progress.total,
            questions=self.questions,
            expires_in=self.expires_in,
            warning=warning,
            raw=task.raw,
        )


def _failed(fetching: asyncio.Task[ToolResult]) -> bool:
    return fetching.cancelled() or fetching.exception() is not None
