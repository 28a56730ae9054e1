"""The caller's inbox at a Taskgate gateway: questions of servers that no call could carry.

A server that several clients share may ask without naming a call. The gateway then lets the question wait in the caller's inbox,
where its own tools show it. While a call or a task of this session is open the inbox is looked at, and what waits there goes to the
same callbacks as any other question. Any other server has no inbox and is never asked for one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from taskgate.client.conversation import Conversation
from taskgate.client.dialects import GATEWAY
from taskgate.client.errors import ClientError, Question, Refused, ServerError
from taskgate.client.poller import Poller
from taskgate.client.questions import ELICITATION, SAMPLING, cancel

LOOK_SECONDS = 2.0
MOST_ANSWERED = 1000
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
        if not self._watched and not self._absent and self._conversation.dialect.server_info.get("name") == GATEWAY:
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

    async def _respond(self, question: Question, answer: Mapping[str, Any]) -> None:
        if question.method == ELICITATION:
            await self._tool("respond_to_elicitation", {"request_id": question.key, **answer})
            return
        stop = {"stop_reason": answer["stopReason"]} if "stopReason" in answer else {}
        said = {name: answer[name] for name in ("role", "content", "model") if name in answer}
        await self._tool("respond_to_sampling", {"request_id": question.key, **said, **stop})

    async def _tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return await self._conversation.request("tools/call", {"name": name, "arguments": arguments})


def _rows(result: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The questions in the reply of one of the gateway's tools; nothing where it is no such reply."""
    told = result.get("structuredContent")
    if not isinstance(told, Mapping):
        try:
            told = json.loads(result["content"][0]["text"])
        except (KeyError, IndexError, TypeError, ValueError):
            return []
    rows = told.get(key) if isinstance(told, Mapping) else None
    fits = (row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()
    return [row for row in fits if isinstance(row.get("request_id"), str) and isinstance(row.get("params"), dict)]
