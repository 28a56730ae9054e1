"""The task methods of both generations: `tasks/get`, `tasks/result`, `tasks/list`, `tasks/cancel` and `tasks/update`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.generations.generation import RELATED_TASK, Generation
from taskgate.core.generations.stateless import TASKS_EXTENSION, missing_capability, strip_result
from taskgate.core.meta import with_meta
from taskgate.core.questions.question import Answer
from taskgate.core.tasks.projections_stateful import stateful_list_row, stateful_status, stateful_task
from taskgate.core.tasks.proof import about
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import OutcomeKind, RunOn, Task
from taskgate.core.tasks.transition import Cancelled
from taskgate.gateway.requests.large_results import edited
from taskgate.gateway.requests.open_conversations import OpenConversations
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.request_state import RequestStateSigner
from taskgate.gateway.tasks.followers import Followers
from taskgate.gateway.tasks.open_questions import question_named
from taskgate.gateway.tasks.own_tasks import own_tasks
from taskgate.gateway.tasks.presence import CallerPresence
from taskgate.gateway.tasks.questions import TaskQuestions
from taskgate.gateway.tasks.runs import Runs
from taskgate.gateway.tasks.task_polls import TaskPolls
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.gateway.tasks.upstream_listing import ALIAS, UpstreamListing
from taskgate.ports.cancel_note import CancelNote
from taskgate.ports.upstream_replies import RelayedError
from taskgate.store.operations.task_queries import FindTask

KEEP_ALIVE_S: Final = 10.0
LONGEST_RESULT_WAIT_S: Final = 24 * 3600.0
EARLY: Final = 0.8
DEFAULT_PAGE: Final = 50
PARTIAL_META: Final = "taskgate/partial"


class TaskMethods:
    def __init__(
        self,
        records: TaskRecords,
        runs: Runs,
        questions: TaskQuestions,
        upstream_listing: UpstreamListing,
        followers: Followers,
        *,
        conversations: OpenConversations,
        state_signer: RequestStateSigner,
        polls: TaskPolls,
        presence: CallerPresence,
    ) -> None:
        self.draining = False
        """Whether the gateway is shutting down: then replies are no longer held."""
        self._records = records
        self._runs = runs
        self._questions = questions
        self._upstream_listing = upstream_listing
        self._followers = followers
        self._conversations = conversations
        self._state_signer = state_signer
        self._polls = polls
        self._presence = presence

    def drain(self) -> None:
        self.draining = True
        self._records.changes.wake_all()

    async def get(self, request: Request) -> bytes:
        self._check_extension(request)
        if _is_alias(request):
            return await self._upstream_listing.relay(request, "tasks/get", request.params["taskId"])
        task = await self._records.find(request, request.params.get("taskId"))
        self._start_if_requested(task, RunOn.DEMAND)
        task = await self._delay_early_poll(request, task)
        self._start_if_requested(task, RunOn.DEMAND)
        return wire.encode(await self._shown(request, task))

    async def _shown(self, request: Request, task: Task) -> dict[str, Any]:
        if request.generation is Generation.STATEFUL:
            return stateful_task(task, self._records.poll_ms(task))
        return await self._records.detailed(task)

    async def _delay_early_poll(self, request: Request, task: Task) -> Task:
        """Hold a poll that comes before its poll interval until the task changes or the interval is over."""
        if task.state.is_terminal or task.state is TaskState.INPUT_REQUIRED:
            self._polls.forget(task.id)
            return task
        interval = self._records.poll_ms(task) / 1000
        last = self._note_poll(task, interval)
        wait = interval * EARLY - (clock.monotonic() - last)
        if last and wait > 0 and await self._records.changes.next_change(task, min(wait, interval)):
            return await self._records.find(request, task.id, proved=True)
        return task

    def _note_poll(self, task: Task, interval_s: float) -> float:
        """Record a poll and return the time of the last one."""
        try:
            last = self._polls.note_poll(task.id, interval_s)
        except GatewayFault as fault:
            raise about(task, fault) from None
        self._presence.polled(task, interval_s)
        return last

    def seconds_since_poll(self, task_id: str) -> float | None:
        """How long ago this gateway saw the last poll of the task; None if it is not remembered."""
        return self._polls.seconds_since(task_id)

    def polled(self, task: Task) -> None:
        """Record a poll of a caller that reads the task other than by `tasks/get`."""
        if not task.state.is_terminal:
            self._note_poll(task, self._records.poll_ms(task) / 1000)
        self._start_if_requested(task, RunOn.DEMAND)

    def start_if_approved(self, task: Task) -> None:
        """Start an approved task because its caller opened a stream on it."""
        self._start_if_requested(task, RunOn.DEMAND)

    def start_for_result(self, task: Task) -> None:
        """Start an approved task because its caller waits for the result other than by `tasks/result`."""
        self._start_if_requested(task, RunOn.RESULT)

    def _start_if_requested(self, task: Task, reason: RunOn) -> None:
        """Start the run of an approved task whose caller has returned."""
        if task.state is TaskState.APPROVED and (task.run_on is not RunOn.RESULT or reason is RunOn.RESULT):
            self._runs.start(task)

    async def result(self, request: Request) -> bytes:
        """Wait for the end of the task. The stream is kept alive meanwhile and carries the task's questions."""
        if _is_alias(request):
            return await self._upstream_listing.relay(request, "tasks/result", request.params["taskId"])
        task = await self._records.find(request, request.params.get("taskId"))
        self._start_if_requested(task, RunOn.RESULT)
        self._followers.add_result_request(task.id, request)
        try:
            task = await self.wait(request, task, LONGEST_RESULT_WAIT_S)
        finally:
            self._followers.remove_request(task.id, request)
        if not task.state.is_terminal:
            text = "The gateway is shutting down. The task is kept: try again in a moment."
            raise about(task, GatewayFault("shutting_down", text, retry_after_s=5))
        return await self.final_result(request, task)

    async def wait(
        self,
        request: Request,
        task: Task,
        limit_s: float,
        when_changed: Callable[[Task], None] | None = None,
        until: Callable[[Task], Awaitable[bool]] | None = None,
    ) -> Task:
        """The task when it has ended, or as it is when the time is up or `until` is true."""
        end = clock.monotonic() + limit_s
        while not task.state.is_terminal and not (until is not None and await until(task)):
            left = end - clock.monotonic()
            if left <= 0 or self.draining:
                return task
            if not await self._records.changes.next_change(task, min(left, KEEP_ALIVE_S)) and left > KEEP_ALIVE_S:
                request.delivery.outlet.hold_open()
            task = await self._records.find(request, task.id, proved=True)
            if when_changed is not None:
                when_changed(task)
            if request.delivery.outlet.is_read:
                self._start_if_requested(task, RunOn.RESULT)
        return task

    async def final_result(self, request: Request, task: Task) -> bytes:
        """What the call itself would have returned, with the id of its task."""
        body = await self._records.result_bytes(task)
        if task.outcome is not None and body is not None:
            if task.outcome.kind is OutcomeKind.ERROR:
                raise RelayedError(body, wire.parse_strictly(body)["code"])
            return await edited(body, lambda raw: _related(strip_result(raw, "tools/call"), task.id))
        text = task.status_message or "The task was cancelled."
        result = wire.encode({"content": [{"type": "text", "text": text}], "isError": True})
        return _related(result, task.id)

    async def cancel(self, request: Request) -> bytes:
        self._check_extension(request)
        if _is_alias(request):
            return await self._upstream_listing.relay(request, "tasks/cancel", request.params["taskId"])
        task = await self._records.find(request, request.params.get("taskId"))
        stateless = request.generation is Generation.STATELESS
        if task.state.is_terminal:
            if stateless:
                return b'{"resultType":"complete"}'
            text = f"This task has ended already, as {stateful_status(task)}."
            raise about(task, CallerError("task_finished", text))
        reason = request.params.get("reason")
        task = await self.cancel_task(task, reason if type(reason) is str else None)
        if stateless:
            return b'{"resultType":"complete"}'
        return wire.encode(stateful_task(task, self._records.poll_ms(task)))

    async def cancel_task(self, task: Task, reason: str | None) -> Task:
        cancelled = await self._records.advance(task.id, Cancelled(reason[:200] if reason else None))
        if cancelled is None:
            current = await self._records.store.ask(FindTask(task.id))
            if current is None:
                raise CallerError("task_finished", "This task has ended already.")
            if current.state is not TaskState.CANCELLED:
                raise about(current, CallerError("task_finished", "This task has ended already."))
            return current
        if cancelled.owner != self._records.store.ownership.owner:
            return cancelled  # the gateway that runs it is notified and stops
        await self._runs.cancel(cancelled, CancelNote.read({"reason": reason}))
        return cancelled

    async def update(self, request: Request) -> bytes:
        """Answers of a stateless caller. Unknown and answered keys are ignored."""
        self._check_extension(request)
        task = await self._records.find(request, request.params.get("taskId"))
        responses = request.params.get("inputResponses")
        if type(responses) is not dict:
            raise about(task, CallerError("invalid_params", 'tasks/update needs "inputResponses", an object.'))
        raw = wire.members_of(request.members()["inputResponses"])
        for key, value in raw.items():
            asked = await question_named(self._records.store, task, key)
            await self._questions.accept_answer(*asked, Answer(result=bytes(value)))
        return b'{"resultType":"complete"}'

    async def list(self, request: Request) -> bytes:
        """The gateway's tasks, followed by those of servers that the caller has its own links to, with one signed cursor."""
        limit = request.params.get("limit", DEFAULT_PAGE)
        if type(limit) is not int or not 0 < limit <= 1000:
            raise CallerError("invalid_params", '"limit" must be a whole number from 1 to 1000.')
        server, after = self._position(request)
        rows: list[dict[str, Any]] = []
        if not server:
            key = request.conversation_key
            page = await own_tasks(self._records.store, self._conversations, key, after=after or None, limit=limit)
            rows = [stateful_list_row(task, self._records.poll_ms(task)) for task in page.tasks]
            if page.after is not None:
                return wire.encode({"tasks": rows, "nextCursor": self._cursor(request, "", page.after)})
            after = ""
        upstream_listing = await self._upstream_listing.page(request, (server, after), limit - len(rows))
        result: dict[str, Any] = {"tasks": rows + upstream_listing.rows}
        if upstream_listing.next is not None:
            result["nextCursor"] = self._cursor(request, *upstream_listing.next)
        if upstream_listing.failed:
            result["_meta"] = {PARTIAL_META: upstream_listing.failed}
        return wire.encode(result)

    def _cursor(self, request: Request, server: str, after: str) -> str:
        return self._state_signer.sign(
            "list", request.caller.principal, "tasks/list", request.caller_key, server, body=after
        )

    def _position(self, request: Request) -> tuple[str, str]:
        cursor = request.params.get("cursor")
        if cursor is None:
            return "", ""
        try:
            state = self._state_signer.verify(cursor, request.caller.principal, "tasks/list", request.caller_key)
        except CallerError:
            text = "The cursor is invalid or has expired. Start again without a cursor."
            raise CallerError("invalid_cursor", text) from None
        return state.server, state.body

    def _check_extension(self, request: Request) -> None:
        if request.envelope is not None and not request.envelope.accepts_tasks:
            raise missing_capability({"extensions": {TASKS_EXTENSION: {}}}, "Declare the tasks extension to use tasks.")


def _is_alias(request: Request) -> bool:
    task_id = request.params.get("taskId")
    return request.session is not None and type(task_id) is str and task_id.startswith(ALIAS)


def _related(result: bytes, task_id: str) -> bytes:
    return wire.join(with_meta(wire.members_of(result), {RELATED_TASK: wire.raw({"taskId": task_id})}))
