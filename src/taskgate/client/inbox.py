"""The caller's inbox at a Taskgate gateway: questions of servers that no call could carry.

A server that several clients share may ask without naming a call. The gateway then lets the question wait in the caller's inbox,
where its own tools show it. While a call or a task of this session is open the inbox is looked at, and what waits there goes to the
same callbacks as any other question. Any other server has no inbox and is never asked for one.
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

LOOK_SECONDS = 2.0
MOST_ANSWERED = 1000
REFUSED = -32602
"""The code of an error that stands for a refused call of the gateway's own tools."""
# Per kind of question: the tool that shows what waits, and the key of its list.
_ELICITATIONS = ("get_elicitations", "elicitations")
_SAMPLINGS = ("get_sampling_requests", "sampling_requests")


class GatewayInbox:
    """Looks as long as `busy` says that something of this session is open. Watched by the session's poller."""

    def __init__(
        self, conversation: Conversation, poller: Poller, busy: Callable[[], bool], asked: Callable[[], bool]
    ) -> None:
        """`asked`: whether a task of this session asks something, which may be what the inbox shows, too."""
        self._conversation, self._poller, self._busy, self._asked = conversation, poller, busy, asked
        self._watched = False
        self._absent = False
        self._answered: dict[str, None] = {}

    def wake(self) -> None:
        """Something was opened."""
        if not self._watched and not self._absent and self._is_gateway():
            self._watched = True
            self._poller.watch(self, LOOK_SECONDS)

    async def tick(self) -> float | None:
        self._watched = self._busy() and not self._absent
        if not self._watched:
            return None
        options = self._conversation.options
        if self._asked():
            return LOOK_SECONDS
        try:
            if options.elicitation is not None or options.answer_by_hand:
                await self._look(ELICITATION, *_ELICITATIONS)
            if options.sampling is not None:
                await self._look(SAMPLING, *_SAMPLINGS)
        except ClientError as error:
            # Anything else that is wrong shows in the call that is open.
            self._absent = isinstance(error, ServerError) and error.error_type == "unknown_tool"
        return LOOK_SECONDS

    async def questions(self, timeout: float | None = None) -> list[Question]:
        """Everything that waits for this caller now; nothing where there is no inbox."""
        if not self._is_gateway():
            return []
        found: list[Question] = []
        for method, tool, key in ((ELICITATION, *_ELICITATIONS), (SAMPLING, *_SAMPLINGS)):
            rows = _rows(_accepted(await self._tool(tool, {}, timeout)), key)
            found += [Question(row["request_id"], method, row["params"]) for row in rows]
        return found

    async def tasks(self, timeout: float | None = None) -> list[Task]:
        """The tasks that the gateway lists for this caller."""
        if not self._is_gateway():
            raise TasksNotSupported("MCP 2026-07-28 has no list of tasks: keep the ids and use resume_task")
        result = _accepted(await self._tool("list_tasks", {"include_completed": True}, timeout))
        rows = _structured(result).get("tasks")
        return [_task(row) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    def _is_gateway(self) -> bool:
        return self._conversation.dialect.server_info.get("name") == GATEWAY

    async def _look(self, method: str, tool: str, key: str) -> None:
        for row in _rows(await self._tool(tool, {}), key):
            # What a call or a task asks comes with that call or task.
            if row.get("undecided") is True and row["request_id"] not in self._answered:
                self._answered[row["request_id"]] = None
                if len(self._answered) > MOST_ANSWERED:
                    del self._answered[next(iter(self._answered))]
                self._conversation.spawn(self._answer(Question(row["request_id"], method, row["params"])))

    async def _answer(self, question: Question) -> None:
        try:
            answer = await self._conversation.answering.answer(question)
        except (Refused, ServerError):
            if question.method != ELICITATION:
                return  # another client of the same user may write the message
            answer = cancel()
        try:
            await self._respond(question, answer)
        except ServerError:
            self._answered.pop(question.key, None)  # if it still waits, the answer did not fit: it is asked again

    async def respond(self, question: Question, answer: Mapping[str, Any], timeout: float | None = None) -> None:
        """Answer a question for the program that uses the session. Raises ServerError if the gateway refuses the answer."""
        _accepted(await self._respond(question, answer, timeout))
        self._answered[question.key] = None

    async def _respond(
        self, question: Question, answer: Mapping[str, Any], timeout: float | None = None
    ) -> dict[str, Any]:
        if question.method == ELICITATION:
            return await self._tool("respond_to_elicitation", {"request_id": question.key, **answer}, timeout)
        stop = {"stop_reason": answer["stopReason"]} if "stopReason" in answer else {}
        said = {name: answer[name] for name in ("role", "content", "model") if name in answer}
        return await self._tool("respond_to_sampling", {"request_id": question.key, **said, **stop}, timeout)

    async def _tool(self, name: str, arguments: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        return await self._conversation.request("tools/call", {"name": name, "arguments": arguments}, timeout=timeout)


def _rows(result: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The questions in the reply of one of the gateway's tools; nothing where it is no such reply."""
    rows = _structured(result).get(key)
    fits = (row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()
    return [row for row in fits if isinstance(row.get("request_id"), str) and isinstance(row.get("params"), dict)]


def _structured(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a tool of the gateway returned; nothing where it is no such reply."""
    told = result.get("structuredContent")
    if not isinstance(told, Mapping):
        try:
            told = json.loads(result["content"][0]["text"])
        except (KeyError, IndexError, TypeError, ValueError):
            return {}
    return told if isinstance(told, Mapping) else {}


def _accepted(result: dict[str, Any]) -> dict[str, Any]:
    """The gateway's own tools refuse with a result, for models; a program gets the error that it stands for."""
    if result.get("isError") is not True:
        return result
    meta = result.get("_meta")
    data = meta.get("taskgate/error") if isinstance(meta, Mapping) else None
    raise ServerError(REFUSED, ToolResult(dict(result)).text, data if isinstance(data, dict) else None)


def _task(row: Mapping[str, Any]) -> Task:
    """A row of `list_tasks` as the task that it describes. Its words are those of MCP but for two."""
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
