"""The tasks that a session follows: their handles, progress tokens, polling and `tasks/*` requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from taskgate.client.conversation import Conversation
from taskgate.client.errors import InvalidReply, Question
from taskgate.client.follower import Followed
from taskgate.client.inbox import GatewayInbox
from taskgate.client.options import Generation, OnProgress, Options
from taskgate.client.poll_delays import next_delay
from taskgate.client.poller import Poller
from taskgate.client.questions import Answering
from taskgate.client.results import Progress, Task, TaskStatus, TaskUpdate, read_progress
from taskgate.client.task_handle import LONG_INTERVAL_MS, TaskHandle

MAX_EARLY = 64


class Following:
    """The tasks of one session: handles by id, and progress callbacks by token."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._poller = Poller(conversation.options.poll_concurrency)
        self._progress: dict[str, Callable[[Progress], None]] = {}
        # A status notification may arrive before the result that creates the task; a few are kept.
        self._early: dict[str, Mapping[str, Any]] = {}
        self.handles: dict[str, TaskHandle] = {}
        self._open_calls = 0
        self.inbox = GatewayInbox(conversation, self._poller, self._is_busy, self._is_asked)
        conversation.answering.on_parked(self._on_parked)
        conversation.on("notifications/progress", self._on_progress)
        conversation.on("notifications/tasks/status", self._on_task)
        conversation.on("notifications/tasks", self._on_task)

    @property
    def options(self) -> Options:
        return self._conversation.options

    @property
    def generation(self) -> Generation:
        return self._conversation.generation

    @property
    def answering(self) -> Answering:
        return self._conversation.answering

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._conversation.spawn(work)

    @contextlib.contextmanager
    def open_call(self) -> Iterator[None]:
        """Poll the gateway's inbox during a plain call, because its server may ask questions there."""
        self._open_calls += 1
        self.inbox.wake()
        try:
            yield
        finally:
            self._open_calls -= 1

    def _is_busy(self) -> bool:
        return self._open_calls > 0 or any(not handle.status.is_terminal for handle in self.handles.values())

    def _is_asked(self) -> bool:
        return any(handle.status is TaskStatus.INPUT_REQUIRED for handle in self.handles.values())

    def follow(self, handle: TaskHandle, task: Task) -> None:
        """Start polling a new task. Raises InvalidReply for a duplicate id."""
        if task.task_id in self.handles:
            raise InvalidReply(f"the server used the task id {task.task_id} twice")
        self.handles[task.task_id] = handle
        if (
            self.generation is Generation.STATELESS
            and task.status.is_terminal
            and task.result is None
            and task.error is None
        ):
            # A call with a known idempotency key returned an ended task; tasks/get returns its result.
            self._poller.watch(handle, 0.0)
            return
        self._poller.watch(handle, next_delay(task.poll_interval, self.options.default_poll_interval))
        handle.observe(task)
        self.inbox.wake()
        if (early := self._early.pop(task.task_id, None)) is not None:
            self._on_task(early)
        if not task.status.is_terminal and (task.poll_interval or 0) >= LONG_INTERVAL_MS:
            self.long_lived(handle)

    def poll_now(self, handle: Followed) -> None:
        """Poll this task now."""
        if handle.task_id in self.handles:
            self._poller.watch(handle, 0.0)

    def poll_now_by_id(self, task_id: str) -> None:
        if task_id in self.handles:
            self.poll_now(self.handles[task_id])

    def forget(self, handle: Followed) -> None:
        """Stop following a task whose result was collected."""
        self._poller.forget(handle)
        if handle.task_id is not None:
            self.handles.pop(handle.task_id, None)
            self._conversation.subscriptions.drop_task(handle.task_id)

    def ended(self, handle: Followed, token: str | None) -> None:
        """Drop the progress token of an ended task; an uncollected result is still watched for its expiry."""
        if token is not None:
            self._progress.pop(token, None)
        if handle.has_outcome:
            self.forget(handle)
        else:
            self._poller.watch(handle, 0.0)

    def long_lived(self, handle: Followed) -> None:
        """Subscribe to a slow task of a stateless server."""
        if self.generation is Generation.STATELESS and handle.task_id and self._conversation.dialect.runs_tasks():
            self._conversation.subscriptions.add_task(handle.task_id)

    def warn(self, update: TaskUpdate) -> None:
        if self.options.on_expiry is not None:
            self.options.on_expiry(update)

    async def close(self) -> None:
        for handle in list(self.handles.values()):
            handle.abandon()
        await self._poller.close()

    def expect_progress(self, on_progress: OnProgress | None) -> str:
        token = self._conversation.next_token()
        self._progress[token] = on_progress or (lambda progress: None)
        return token

    def pass_progress(self, token: str, handle: TaskHandle) -> None:
        """Assign the token of a call to its task."""
        self._progress[token] = handle.report

    def drop_progress(self, token: str) -> None:
        self._progress.pop(token, None)

    async def read_task(self, task_id: str, timeout: float | None = None) -> Task:
        result = await self._conversation.request("tasks/get", {"taskId": task_id}, timeout=timeout)
        task = self._conversation.dialect.task(result)
        if task.task_id != task_id:
            raise InvalidReply(f"the server returned task {task.task_id} for a request about {task_id}")
        return task

    async def fetch_result(self, task_id: str, timeout: float, *, long: bool = False) -> dict[str, Any]:
        return await self._conversation.request("tasks/result", {"taskId": task_id}, timeout=timeout, long=long)

    async def update_task(self, task_id: str, answers: Mapping[str, Any]) -> None:
        await self._conversation.request("tasks/update", {"taskId": task_id, "inputResponses": dict(answers)})

    async def cancel_task(self, task_id: str, timeout: float | None = None) -> Task:
        result = await self._conversation.request("tasks/cancel", {"taskId": task_id}, timeout=timeout)
        if self.generation is Generation.STATEFUL:
            return self._conversation.dialect.task(result)
        return await self.read_task(task_id, timeout)

    def _on_progress(self, params: Mapping[str, Any]) -> None:
        report = self._progress.get(str(params.get("progressToken")))
        progress = read_progress(params)
        if report is not None and progress is not None:
            report(progress)

    def _on_task(self, params: Mapping[str, Any]) -> None:
        task_id = str(params.get("taskId"))
        handle = self.handles.get(task_id)
        if handle is None:
            self._early[task_id] = params
            if len(self._early) > MAX_EARLY:
                del self._early[next(iter(self._early))]
            return
        try:
            task = self._conversation.dialect.task(params)
        except InvalidReply:
            self.poll_now(handle)
            return
        bare = task.result is None and task.error is None
        if task.status.is_terminal and self.generation is Generation.STATELESS and bare:
            self.poll_now(handle)  # the result comes with tasks/get
        else:
            handle.observe(task, pushed=True)

    def _on_parked(self, question: Question) -> None:
        handle = self.handles.get(question.task_id or "")
        if handle is not None:
            handle.parked()
