"""Show or ask questions of the called tool's server that name no call, while the call is open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from taskgate import clock
from taskgate.cli import printing
from taskgate.cli.gateway_api import ApiProblem, GatewayApi

if TYPE_CHECKING:
    from taskgate.client import Question

Answer = Callable[["Question"], Awaitable[dict[str, Any]]]
"""Asks the person at the terminal and returns the answer to an elicitation."""
POLL_SECONDS = 2.0
OPERATORS_INBOX = "(operator)"
"""The caller of questions that only the operator may see."""


class ServerQuestions:
    """Polls for questions of the called tool's server that are not tied to a call.

    The session itself asks the questions in the caller's inbox. This class asks those in the operator's inbox, if the caller is
    the operator. Without a terminal, both are printed with the command that answers them. `api` is None without a token.
    """

    def __init__(self, api: GatewayApi | None, tool: str, *, as_json: bool, answer: Answer | None = None) -> None:
        self._api, self._as_json, self._answer = api, as_json, answer
        self._server = tool.partition("__")[0] if "__" in tool else None
        self._shown: set[str] = set()

    async def watch(self) -> None:
        while self._api is not None:
            try:
                rows = (await asyncio.to_thread(self._api.get, "/api/questions")).value
            except ApiProblem:
                # The task is followed separately, which reports the error.
                return
            for row in rows if isinstance(rows, list) else ():
                if row.get("undecided") and row["request_id"] not in self._shown and self._concerns(row):
                    self._shown.add(row["request_id"])
                    await self._put(self._api, row)
            await clock.sleep(POLL_SECONDS)

    def _concerns(self, row: dict[str, Any]) -> bool:
        return self._server in (None, row["server"])

    async def _put(self, api: GatewayApi, row: dict[str, Any]) -> None:
        if self._answer is None or row["kind"] == "sampling":
            self._show(row)
        elif row["caller"] == OPERATORS_INBOX:
            from taskgate.client import Question

            answer = await self._answer(Question(row["request_id"], "elicitation/create", row["params"]))
            try:
                await asyncio.to_thread(api.post, f"/api/questions/{quote(row['request_id'])}", answer)
            except ApiProblem as problem:
                printing.note(f"The answer was refused: {problem}")

    def _show(self, row: dict[str, Any]) -> None:
        question_id, server = row["request_id"], row["server"]
        if self._as_json:
            printing.event("server_question", server=server, request_id=question_id, params=row["params"])
            return
        message = printing.one_line(row["params"].get("message") or row["kind"])
        printing.note(f"{printing.one_line(server)} sent a question that is not tied to a call: {message}")
        printing.note(f"Answer it with: taskgate questions answer {question_id} JSON")
