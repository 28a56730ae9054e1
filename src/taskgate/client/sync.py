"""The blocking client for scripts without asyncio: `with connect(url_or_command) as session: session.call_tool(...)`.

One background thread runs an event loop for all sessions; each method runs its asynchronous counterpart there and waits.
Callbacks run in separate threads, so they may block.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, overload

import msgspec

from taskgate.client import connect as asynchronous
from taskgate.client.errors import ClientError, Question
from taskgate.client.gathering import DEFAULT_LIMIT, first_error
from taskgate.client.options import Answerer, OnProgress
from taskgate.client.results import Listed, Task, TaskStatus, TaskUpdate, Tool, ToolResult
from taskgate.client.session import Session as AsyncSession
from taskgate.client.task_handle import TaskHandle as AsyncTaskHandle

T = TypeVar("T")


class _LoopThread:
    """An event loop in a daemon thread, started on first use and kept until the process exits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="taskgate-client", daemon=True).start()
            return self._loop


_thread = _LoopThread()


class TaskHandle(msgspec.Struct, eq=False):
    """The blocking version of `taskgate.client.TaskHandle`."""

    _handle: AsyncTaskHandle

    @property
    def task_id(self) -> str | None:
        return self._handle.task_id

    @property
    def status(self) -> TaskStatus:
        return self._handle.status

    @property
    def questions(self) -> Mapping[str, Question]:
        return self._handle.questions

    def updates(self) -> Iterator[TaskUpdate]:
        updates = self._handle.updates()
        try:
            while (update := _thread.run(_next(updates))) is not None:
                yield update
        finally:
            _thread.run(updates.aclose())  # type: ignore[attr-defined]

    def result(self, timeout: float | None = None) -> ToolResult:
        return _thread.run(self._handle.result(timeout))

    def cancel(self) -> Task | None:
        return _thread.run(self._handle.cancel())

    def answer(self, answers: Mapping[str, Any]) -> None:
        _thread.run(self._handle.answer(answers))


class Session(msgspec.Struct, eq=False):
    """The blocking version of `taskgate.client.Session`. `.asynchronous` is the underlying session."""

    asynchronous: AsyncSession

    @property
    def server_info(self) -> Mapping[str, Any]:
        return self.asynchronous.server_info

    @property
    def protocol_version(self) -> str:
        return self.asynchronous.protocol_version

    @property
    def supports_tasks(self) -> bool:
        return self.asynchronous.supports_tasks

    def list_tools(self) -> list[Tool]:
        return _thread.run(self.asynchronous.list_tools())

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        key: str | None = None,
    ) -> ToolResult:
        calling = self.asynchronous.call_tool(name, arguments, timeout=timeout, on_progress=on_progress, key=key)
        return _thread.run(calling)

    def run_script(
        self,
        code: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        resume_of: str | None = None,
        ttl: int | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        key: str | None = None,
    ) -> ToolResult:
        running = self.asynchronous.run_script(
            code, inputs, resume_of=resume_of, ttl=ttl, timeout=timeout, on_progress=on_progress, key=key
        )
        return _thread.run(running)

    def call_tool_as_task(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        ttl: int | None = None,
        key: str | None = None,
    ) -> TaskHandle:
        return TaskHandle(_thread.run(self.asynchronous.call_tool_as_task(name, arguments, ttl=ttl, key=key)))

    def tasks(self) -> list[Task]:
        return _thread.run(self.asynchronous.tasks())

    def inbox(self) -> list[Question]:
        return _thread.run(self.asynchronous.inbox())

    def answer_inbox(self, question: Question, answer: Mapping[str, Any]) -> None:
        _thread.run(self.asynchronous.answer_inbox(question, answer))

    def get_task(self, task_id: str) -> Task:
        return _thread.run(self.asynchronous.get_task(task_id))

    def get_task_result(self, task_id: str, timeout: float | None = None) -> ToolResult:
        return _thread.run(self.asynchronous.get_task_result(task_id, timeout))

    def list_tasks(self) -> list[Task]:
        return _thread.run(self.asynchronous.list_tasks())

    def cancel_task(self, task_id: str) -> Task:
        return _thread.run(self.asynchronous.cancel_task(task_id))

    def resume_task(self, task_id: str) -> TaskHandle:
        return TaskHandle(_thread.run(self.asynchronous.resume_task(task_id)))

    def list_prompts(self) -> list[Listed]:
        return _thread.run(self.asynchronous.list_prompts())

    def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> dict[str, Any]:
        return _thread.run(self.asynchronous.get_prompt(name, arguments))

    def list_resources(self) -> list[Listed]:
        return _thread.run(self.asynchronous.list_resources())

    def list_resource_templates(self) -> list[Listed]:
        return _thread.run(self.asynchronous.list_resource_templates())

    def read_resource(self, uri: str) -> dict[str, Any]:
        return _thread.run(self.asynchronous.read_resource(uri))

    def complete(self, ref: Mapping[str, Any], argument: str, value: str) -> list[str]:
        return _thread.run(self.asynchronous.complete(ref, argument, value))

    def ping(self) -> None:
        _thread.run(self.asynchronous.ping())


@contextmanager
def connect(target: str | Sequence[str], **settings: Any) -> Iterator[Session]:
    """Open a session. Accepts the arguments of `taskgate.client.connect`; callbacks may block."""
    for name in ("elicitation", "sampling"):
        if settings.get(name) is not None:
            settings[name] = _in_thread(settings[name])
    opening = asynchronous(target, **settings)
    session = _thread.run(opening.__aenter__())
    try:
        yield Session(session)
    finally:
        _thread.run(opening.__aexit__(None, None, None))


Work = TaskHandle | Callable[[], TaskHandle]
_END: Any = object()


@overload
def gather(
    work: Iterable[Work], *, limit: int = ..., timeout: float | None = ..., return_errors: Literal[False] = ...
) -> list[ToolResult]: ...


@overload
def gather(
    work: Iterable[Work], *, limit: int = ..., timeout: float | None = ..., return_errors: bool
) -> list[ToolResult | ClientError]: ...


def gather(
    work: Iterable[Work], *, limit: int = DEFAULT_LIMIT, timeout: float | None = None, return_errors: bool = False
) -> list[ToolResult] | list[ToolResult | ClientError]:
    """Return the results of task handles, or of functions that return one, in the order of `work`.

    At most `limit` run at once, and the next item is taken from `work` when one has ended. Functions, such as
    `partial(session.call_tool_as_task, name, arguments)`, are called in separate threads; a generator of handles starts one
    task after the other. `timeout` applies to each result. The first error is raised, or, with `return_errors`, returned in
    its place; an error of the generator itself is always raised. Started tasks continue at the server.
    """
    if limit < 1:
        raise ValueError("limit must be at least 1")
    return _thread.run(_gather(iter(work), limit, timeout, return_errors))


async def _gather(
    work: Iterator[Work], limit: int, timeout: float | None, return_errors: bool
) -> list[ToolResult | ClientError]:
    found: dict[int, ToolResult | ClientError] = {}
    taking = asyncio.Lock()
    loop = asyncio.get_running_loop()
    # Threads of its own: blocking callbacks use those of the loop, and a call may wait for its callback.
    with _threads(limit) as threads:

        async def run() -> None:
            while True:
                async with taking:
                    item = await loop.run_in_executor(threads, next, work, _END)
                    if item is _END:
                        return
                    number = len(found)
                    found[number] = _END
                try:
                    handle = item if isinstance(item, TaskHandle) else await loop.run_in_executor(threads, item)
                    found[number] = await handle._handle.result(timeout)
                except ClientError as error:
                    if not return_errors:
                        raise
                    found[number] = error

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(limit):
                    group.create_task(run())
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
    return list(found.values())


@contextmanager
def _threads(limit: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that are not waited for: one may be blocked in a call that was abandoned."""
    threads = ThreadPoolExecutor(limit, thread_name_prefix="taskgate-gather")
    try:
        yield threads
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _in_thread(callback: Answerer) -> Callable[[Question], Coroutine[Any, Any, Mapping[str, Any]]]:
    async def answer(question: Question) -> Mapping[str, Any]:
        given = await asyncio.to_thread(callback, question)
        return await given if inspect.isawaitable(given) else given

    return answer


async def _next(updates: Any) -> TaskUpdate | None:
    update: TaskUpdate | None = await anext(updates, None)
    return update
