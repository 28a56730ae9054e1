"""The call that a tool of a scripted upstream receives, and how it fails."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.virtual_time.callers import META
from tests.virtual_time.upstream_http import HttpReply

Wire = dict[str, Any]
AskOnStream = Callable[[HttpReply, str, Wire], Awaitable[Wire]]


class Failure(Exception):
    """Raise in a tool to answer with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error: Wire = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data


class AsksInput(Exception):
    """A tool of 2026 has a question: its call is answered by `input_required` and comes again."""

    def __init__(self, key: str, question: Wire) -> None:
        super().__init__(key)
        self.key, self.question = key, question


@dataclass(slots=True)
class OwnTask:
    """A task of the upstream itself, with the questions it has and their answers (2026)."""

    id: str
    run: asyncio.Task[Any]
    session: str
    inputs: dict[str, Wire] = field(default_factory=dict)
    answers: dict[str, asyncio.Future[Wire]] = field(default_factory=dict)

    async def ask(self, key: str, question: Wire) -> Wire:
        self.inputs[key] = question
        answer = self.answers[key] = asyncio.get_running_loop().create_future()
        return await answer


class Call:
    """One request to the upstream, as its tool sees it."""

    def __init__(self, message: Wire, headers: dict[str, str], reply: HttpReply, ask: AskOnStream) -> None:
        self._ask_on_stream = ask
        self.message = message
        self.params: Wire = message.get("params") or {}
        self.arguments: Wire = self.params.get("arguments") or {}
        self.meta: Wire = self.params.get("_meta") or {}
        self.headers = headers
        self.session = headers.get("mcp-session-id", "")
        self.task: OwnTask | None = None
        self.reply = reply
        self._questions = itertools.count(1)

    @property
    def stateless(self) -> bool:
        return f"{META}protocolVersion" in self.meta

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def notify(self, method: str, params: Wire) -> None:
        """A notification on the stream of this call."""
        self.reply.event({"jsonrpc": "2.0", "method": method, "params": params})

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Nothing happens if the gateway did not ask for progress."""
        token = self.meta.get("progressToken")
        if token is not None:
            given = {"progressToken": token, "progress": done, "total": total, "message": message}
            self.notify("notifications/progress", {key: value for key, value in given.items() if value is not None})

    async def ask(self, method: str, params: Wire, key: str | None = None) -> Wire:
        """The answer to a question. In 2026 the tool runs again from its beginning with every answer it got."""
        key = key or f"question-{next(self._questions)}"
        if self.task is not None and self.stateless:
            return await self.task.ask(key, {"method": method, "params": params})
        if not self.stateless:
            return await self._ask_on_stream(self.reply, method, params)
        given: Wire = self.params.get("inputResponses") or {}
        state = json.loads(self.params.get("requestState") or "{}")
        known = {**state, **given}
        if key not in known:
            raise AsksInput(key, {"method": method, "params": params})
        found: Wire = known[key]
        return found

    async def elicit(self, message: str, schema: Wire | None = None) -> Wire:
        form = schema or {"type": "object", "properties": {"value": {"type": "string"}}}
        return await self.ask("elicitation/create", {"message": message, "requestedSchema": form})
