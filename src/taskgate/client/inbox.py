"""Questions in the caller's inbox at a Taskgate gateway: those that are not tied to a call.

A server that several clients share may ask a question without naming a call. The gateway keeps it in the caller's inbox, where
its own tools return it. While a call or a task of this session is open, the inbox is polled, and its questions are passed to the
callbacks. Other servers have no inbox and are not polled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from taskgate.client.conversation import Conversation
from taskgate.client.errors import ClientError, Question, Refused, ServerError, TasksNotSupported
from taskgate.client.poller import Poller
from taskgate.client.questions import ELICITATION, SAMPLING, cancel
from taskgate.client.results import Task, ToolResult
from taskgate.client.stateless import GATEWAY

POLL_SECONDS = 2.0
MAX_ANSWERED = 1000
REFUSED = -32602
"""The error code for a refused call of the gateway's own tools."""
# For each kind of question: the tool that lists them, and the key of the list.
_ELICITATIONS = ("get_elicitations", "elicitations")
_SAMPLINGS = ("get_sampling_requests", "sampling_requests")


class GatewayInbox:
    """Polls the inbox while `busy` returns True. Watched by the session's poller."""

    def __init__(
        self, conversation: Conversation, poller: Poller, busy: Callable[[], bool], task_waits: Callable[[], bool]
    ) -> None:
        """`task_waits`: whether a task of this session waits for input, which the inbox may list too."""
        self._conversation, self._poller, self._busy, self._task_waits = conversation, poller, busy, task_waits
        self._watched = False
        self._absent = False
        self._answered: dict[str, None] = {}

    def wake(self) -> None:
        """Start polling: a call or a task was opened."""
        if not self._watched and not self._absent and self._is_gateway():
            self._watched = True
            self._poller.watch(self, POLL_SECONDS)

    async def tick(self) -> float | None:
        self._watched = self._busy() and not self._absent
        if not self._watched:
            return None
        options = self._conversation.options
        if self._task_waits():
            return POLL_SECONDS
        try:
            if options.elicitation is not None or options.answer_by_hand:
                await self._poll(ELICITATION, *_ELICITATIONS)
            if options.sampling is not None:
                await self._poll(SAMPLING, *_SAMPLINGS)
        except ClientError as error:
            # Other errors appear in the open call.
            self._absent = isinstance(error, ServerError) and error.error_type == "unknown_tool"
        return POLL_SECONDS

    async def questions(self, timeout: float | None = None) -> list[Question]:
        """Return the open questions of this caller; empty if the server has no inbox."""
        if not self._is_gateway():
            return []
        found: list[Question] = []
        for method, tool, key in ((ELICITATION, *_ELICITATIONS), (SAMPLING, *_SAMPLINGS)):
            rows = _rows(_accepted(await self._tool(tool, {}, timeout)), key)
            found += [Question(row["request_id"], method, row["params"]) for row in rows]
        return found

    async def tasks(self, timeout: float | None = None) -> list[Task]:
        """Return the tasks that the gateway lists for this caller. Raises TasksNotSupported for other servers."""
        if not self._is_gateway():
            raise TasksNotSupported("MCP 2026-07-28 has no list of tasks: keep the ids and use resume_task")
        result = _accepted(await self._tool("list_tasks", {"include_completed": True}, timeout))
        rows = _structured(result).get("tasks")
        return [_task(row) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    def _is_gateway(self) -> bool:
        return self._conversation.dialect.server_info.get("name") == GATEWAY

    async def _poll(self, method: str, tool: str, key: str) -> None:
        for row in _rows(await self._tool(tool, {}), key):
            # Questions that are tied to a call or a task arrive there.
            if row.get("undecided") is True and row["request_id"] not in self._answered:
                self._answered[row["request_id"]] = None
                if len(self._answered) > MAX_ANSWERED:
                    del self._answered[next(iter(self._answered))]
                self._conversation.spawn(self._answer(Question(row["request_id"], method, row["params"])))

    async def _answer(self, question: Question) -> None:
        try:
            answer = await self._conversation.answering.answer(question)
        except (Refused, ServerError):
            if question.method != ELICITATION:
                return  # another client of the same user may answer
            answer = cancel()
        try:
            await self._respond(question, answer)
        except ServerError:
            self._answered.pop(question.key, None)  # the answer was invalid; ask again if it is still open

    async def respond(self, question: Question, answer: Mapping[str, Any], timeout: float | None = None) -> None:
        """Answer a question. Raises ServerError if the gateway refuses the answer."""
        _accepted(await self._respond(question, answer, timeout))
        self._answered[question.key] = None

    async def _respond(
        self, question: Question, answer: Mapping[str, Any], timeout: float | None = None
    ) -> dict[str, Any]:
        if question.method == ELICITATION:
            return await self._tool("respond_to_elicitation", {"request_id": question.key, **answer}, timeout)
        stop = {"stop_reason": answer["stopReason"]} if "stopReason" in answer else {}
        message = {name: answer[name] for name in ("role", "content", "model") if name in answer}
        return await self._tool("respond_to_sampling", {"request_id": question.key, **message, **stop}, timeout)

    async def _tool(self, name: str, arguments: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        return await self._conversation.request("tools/call", {"name": name, "arguments": arguments}, timeout=timeout)


def _rows(result: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the questions in the result of a gateway tool; empty if it has another form."""
    rows = _structured(result).get(key)
    fits = (row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()
    return [row for row in fits if isinstance(row.get("request_id"), str) and isinstance(row.get("params"), dict)]


def _structured(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the structured result of a gateway tool; empty if it has another form."""
    value = result.get("structuredContent")
    if not isinstance(value, Mapping):
        try:
            value = json.loads(result["content"][0]["text"])
        except (KeyError, IndexError, TypeError, ValueError):
            return {}
    return value if isinstance(value, Mapping) else {}


def _accepted(result: dict[str, Any]) -> dict[str, Any]:
    """Raise ServerError for an error result of a gateway tool, else return the result."""
    if result.get("isError") is not True:
        return result
    meta = result.get("_meta")
    data = meta.get("taskgate/error") if isinstance(meta, Mapping) else None
    raise ServerError(REFUSED, ToolResult(dict(result)).text, data if isinstance(data, dict) else None)


def _task(row: Mapping[str, Any]) -> Task:
    """Convert a row of `list_tasks` to a task."""
    waits = "input_required" if row.get("waiting_for") == "input" else "working"
    status = {"working": waits, "expired": "failed"}.get(str(row.get("status")), row.get("status"))
    wire = {
        "taskId": row.get("task_id"),
        "status": status,
        "statusMessage": row.get("status_message"),
        "createdAt": row.get("created_at"),
        "lastUpdatedAt": row.get("last_updated_at"),
        "ttlMs": row.get("ttl"),
    }
    return msgspec.structs.replace(Task.from_wire(wire, "ttlMs", "pollIntervalMs"), raw=dict(row))
