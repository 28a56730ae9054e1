"""Follow tasks that a server created for the gateway's calls, in either generation and after a restart.

If a tool can run as a task of its server, the gateway requests one, because then the run survives a crash of the gateway. The
server's task id is stored before anything else. Stateful servers send questions only while `tasks/result` is open, so it is
held open for the first few tasks of a server, which also returns their results at once. Further tasks are polled, and
`tasks/result` is opened when they have ended or ask something. The polls per second to one server are limited. A failed task is
read twice, because some servers report the failure only in `tasks/get`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.catalog.task_support import supports_tasks
from taskgate.core.errors import Executed, UpstreamError
from taskgate.core.generations.generation import RELATED_TASK, Generation
from taskgate.core.generations.stateless import TASKS_EXTENSION
from taskgate.core.meta import with_meta
from taskgate.core.questions.question import Question
from taskgate.core.tasks import endings
from taskgate.core.tasks.task import Task, UpstreamHandle
from taskgate.core.tasks.transition import ErrorReceived, Noted
from taskgate.core.wire import Members, Raw
from taskgate.gateway.events import ElicitationCompleted, EventHub, TaskLogged
from taskgate.gateway.questions.url_elicitations import COMPLETE
from taskgate.gateway.relay.rounds import question_in, stateless_answer
from taskgate.gateway.requests.large_results import edited, members_of, summarized
from taskgate.gateway.tasks.conversation import ALL_CAPABILITIES, Conversation
from taskgate.gateway.tasks.deadlines import TaskDeadlines
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.server_reports import TaskSide
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.gateway.tasks.task_results import TaskResults, error_message, is_error
from taskgate.ports.client_profile import ClientProfile
from taskgate.ports.link import Link
from taskgate.ports.upstream import Upstream
from taskgate.ports.upstream_call import UpstreamCall
from taskgate.ports.upstream_replies import ErrorReply, Reply, Result
from taskgate.store.operations.tasks import NoteProgress

POLL_S: Final = 1.0
MIN_POLL_S: Final = 0.25
MAX_POLL_S: Final = 30.0
POLL_TIMEOUT_S: Final = 30.0
CANCEL_S: Final = 10.0
MAX_OPEN_RESULTS: Final = 64
"""Tasks of one stateful server whose `tasks/result` is held open; the others are polled."""
POLLS_PER_S: Final = 250
"""Maximum polls per second to one server, for all its tasks together."""
_TERMINAL: Final = ("completed", "failed", "cancelled")
_UNKNOWN_TASK: Final = -32602


class UpstreamTasks:
    def __init__(
        self,
        records: TaskRecords,
        questions: TaskQuestions,
        results: TaskResults,
        events: EventHub,
        *,
        deadlines: TaskDeadlines,
        can_be_task: Callable[[str, str], bool],
    ) -> None:
        self._records = records
        self._deadlines = deadlines
        self._questions = questions
        self._results = results
        self._events = events
        self._can_be_task = can_be_task
        self._open_results: Counter[str] = Counter()
        self._polled: Counter[str] = Counter()

    def with_task_param(self, task: Task, link: Link, params: Members) -> Members:
        """Request a task of a stateful server if the tool supports it."""
        able = link.generation is Generation.STATEFUL and supports_tasks(link.capabilities)
        if able and self._can_be_task(task.server, task.tool):
            return {**params, "task": wire.raw({"ttl": task.ttl_ms})}
        return params

    def profile_for(self, link: Link, profile: ClientProfile) -> ClientProfile:
        """Declare the tasks extension to a stateless server that has it."""
        extensions = link.capabilities.get("extensions")
        if link.generation is Generation.STATELESS and isinstance(extensions, dict) and TASKS_EXTENSION in extensions:
            return with_tasks_extension(profile)
        return profile

    async def handle_in(self, link: Link, reply: Reply) -> UpstreamHandle | None:
        """The task handle in a server's reply, if it is one."""
        raw = await summarized(reply.raw) if isinstance(reply, Result) else b""
        if b'"task' not in raw:
            return None
        members = wire.members_of(raw)
        if link.generation is Generation.STATELESS:
            if bytes(members.get("resultType", Raw(b""))) != b'"task"':
                return None
            task_id: Any = wire.parse_strictly(bytes(members.get("taskId", Raw(b"null"))))
        else:
            inner = wire.parse_strictly(bytes(members.get("task", Raw(b"null"))))
            task_id = inner.get("taskId") if type(inner) is dict else None
        if type(task_id) is not str:
            return None
        return UpstreamHandle(link.server, task_id, link.session_id, link.generation)

    async def follow(
        self, task: Task, upstream: Upstream, conversation: Conversation, link: Link | None = None
    ) -> bool:
        """Wait for the server's task, over lost connections too. Return False if the server no longer has it."""
        handle = task.upstream_handle
        assert handle is not None
        while True:
            try:
                link = link or await upstream.link(conversation.key, conversation.profile)
                if link.generation is Generation.STATELESS:
                    return await self._poll_stateless(task, link, handle)
                return await self._wait_stateful(task, link, handle)
            except UpstreamError as problem:
                if await self._retry_time_over(task, problem):
                    return True
            link = None
            await clock.sleep(POLL_S)

    async def _retry_time_over(self, task: Task, problem: UpstreamError) -> bool:
        current = await self._records.current(task.id)
        if current is None or current.state.is_terminal:
            return True
        left_s = self._deadlines.retry_time_left_s(current)
        if left_s is not None and left_s <= 0:
            await self._records.conclude(task.id, endings.lost(current, problem))
            return True
        return False

    async def _wait_stateful(self, task: Task, link: Link, handle: UpstreamHandle) -> bool:
        if self._open_results[link.server] >= MAX_OPEN_RESULTS:
            with _counted(self._polled, link.server):
                await self._poll_stateful(task, link, handle)
        with _counted(self._open_results, link.server):
            reply = await link.request(self._task_request(task, "tasks/result", handle))
        status = await self._status(task, link, handle)
        if isinstance(reply, ErrorReply):
            if not status:
                return False
            await self._results.record(task.id, reply)
            return True
        message = status.get("statusMessage")
        message = message if type(message) is str and message else None
        if status.get("status") == "failed" and isinstance(reply, Result) and not is_error(await summarized(reply.raw)):
            await self._failed(task, message or "The tool failed without a message.")
            return True
        body = await edited(reply.raw, lambda raw: wire.join(without_related_task(raw)))
        body = await self._results.truncate(task.server, body)
        await self._results.record(task.id, Result(body))
        return True

    async def _poll_stateful(self, task: Task, link: Link, handle: UpstreamHandle) -> None:
        """Poll until the task has ended, asks something or is unknown."""
        while True:
            status = await self._status(task, link, handle)
            if status.get("status") != "working":
                return
            self._note(task, status.get("statusMessage"))
            await clock.sleep(self._pause_s(link.server, status.get("pollInterval")))

    def _pause_s(self, server: str, asked_ms: Any) -> float:
        """The server's poll interval, or longer if all polls together would exceed the limit."""
        asked_s = asked_ms / 1000 if type(asked_ms) is int else POLL_S
        return max(min(max(asked_s, MIN_POLL_S), MAX_POLL_S), self._polled[server] / POLLS_PER_S)

    async def _failed(self, task: Task, text: str, executed: Executed = Executed.YES) -> None:
        """The server reports a failed task without a result."""
        problem = UpstreamError("upstream_protocol", text[:500], executed=executed)
        await self._records.conclude(task.id, endings.by_error(task, problem))

    async def _status(self, task: Task, link: Link, handle: UpstreamHandle) -> dict[str, Any]:
        reply = await link.request(self._task_request(task, "tasks/get", handle, timeout_s=POLL_TIMEOUT_S))
        value = wire.parse_strictly(reply.raw) if isinstance(reply, Result) else {}
        return value if type(value) is dict else {}

    async def _poll_stateless(self, task: Task, link: Link, handle: UpstreamHandle) -> bool:
        asking: dict[str, asyncio.Task[None]] = {}
        self._polled[link.server] += 1
        try:
            while True:
                reply = await link.request(self._task_request(task, "tasks/get", handle, timeout_s=POLL_TIMEOUT_S))
                if isinstance(reply, ErrorReply):
                    if reply.code == _UNKNOWN_TASK:
                        return False
                    raise UpstreamError("upstream_unreachable", error_message(reply.raw), executed=Executed.MAYBE)
                members = await members_of(reply.raw)
                status = wire.parse_strictly(bytes(members.get("status", Raw(b'""'))))
                if status in _TERMINAL:
                    await self._end_stateless(task, members, status)
                    return True
                self._ask_new_questions(task, link, handle, members.get("inputRequests"), asking)
                self._note(task, _value(members, "statusMessage"))
                await clock.sleep(self._pause_s(link.server, _value(members, "pollIntervalMs")))
        finally:
            self._polled[link.server] -= 1
            for waiting in asking.values():
                waiting.cancel()
            await asyncio.gather(*asking.values(), return_exceptions=True)

    async def _end_stateless(self, task: Task, members: Members, status: str) -> None:
        if status == "completed" and "result" in members:
            body = await self._results.truncate(task.server, bytes(members["result"]))
            await self._results.record(task.id, Result(body))
            return
        if status == "failed" and "error" in members:
            error = bytes(members["error"])
            await self._records.conclude(task.id, ErrorReceived(error, error_message(error), Executed.YES))
            return
        message = wire.parse_strictly(bytes(members.get("statusMessage", Raw(b'""'))))
        text = message if type(message) is str and message else f"The server's own task ended as {status}."
        await self._failed(task, text, Executed.MAYBE if status == "cancelled" else Executed.YES)

    def _note(self, task: Task, message: Any) -> None:
        if type(message) is str and message:
            self._records.store.defer(NoteProgress(task.id, Noted(message[:500])))

    def _ask_new_questions(
        self, task: Task, link: Link, handle: UpstreamHandle, raw: Raw | None, asking: dict[str, asyncio.Task[None]]
    ) -> None:
        """Ask each question once; the server repeats open ones in every reply."""
        for key, request in (wire.members_of(raw) if raw is not None else {}).items():
            if key not in asking:
                question = question_in(request, link.server)
                asking[key] = asyncio.get_running_loop().create_task(self._answer(task, link, handle, key, question))

    async def _answer(self, task: Task, link: Link, handle: UpstreamHandle, key: str, question: Question) -> None:
        """The server's keys are used unchanged: they are unique for the task, also after a restart."""
        answer = await self._questions.ask_once(task, key, question)
        if answer is None:
            return
        responses = wire.raw({key: stateless_answer(question, answer)})
        await link.request(self._task_request(task, "tasks/update", handle, {"inputResponses": responses}))

    def _task_request(
        self,
        task: Task,
        method: str,
        handle: UpstreamHandle,
        more: Members | None = None,
        timeout_s: float | None = None,
    ) -> UpstreamCall:
        return UpstreamCall(
            method=method,
            params={"taskId": wire.raw(handle.task_id), **(more or {})},
            profile=with_tasks_extension(ALL_CAPABILITIES),
            timeout_s=timeout_s if timeout_s is not None else task.execution_budget_ms / 1000,
            on_notification=lambda method, params: self._on_notification(task, method, params),
            on_question=lambda question: self._questions.ask(task.id, question),
            name=handle.task_id,
            conversation=task.conversation_key.stream,
            side=TaskSide(self._records, task),
            long_lived=method == "tasks/result",
        )

    def _on_notification(self, task: Task, method: str, params: Raw | None) -> None:
        """Progress arrives with the token of the call itself; only log messages and completed elicitations arrive here."""
        if method == "notifications/message" and params is not None:
            self._events.publish(TaskLogged(task.id, params))
        elif method == COMPLETE:
            self._events.publish(ElicitationCompleted(task.server, params))

    async def cancel_upstream(self, task: Task, upstream: Upstream, conversation: Conversation) -> None:
        handle = task.upstream_handle
        assert handle is not None
        link = await upstream.link(conversation.key, conversation.profile)
        await link.request(self._task_request(task, "tasks/cancel", handle, timeout_s=CANCEL_S))


def with_tasks_extension(profile: ClientProfile) -> ClientProfile:
    extensions = profile.capabilities.get("extensions")
    known = extensions if isinstance(extensions, dict) else {}
    capabilities = {**profile.capabilities, "extensions": {**known, TASKS_EXTENSION: {}}}
    return ClientProfile(capabilities, profile.client_info, profile.log_level)


def without_related_task(result: bytes) -> Members:
    """Remove the server's own task id from the result."""
    return with_meta(wire.members_of(result), {}, drop=(RELATED_TASK,))


@contextmanager
def _counted(counter: Counter[str], server: str) -> Iterator[None]:
    counter[server] += 1
    try:
        yield
    finally:
        counter[server] -= 1


def _value(members: Members, name: str) -> Any:
    raw = members.get(name)
    return wire.parse_strictly(bytes(raw)) if raw is not None else None
