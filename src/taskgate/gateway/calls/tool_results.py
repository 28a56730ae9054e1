"""Results that the gateway builds for a tool call, and task handles in the results of servers."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.errors import UpstreamError
from taskgate.core.generations.error_codes import error_data
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import mark_complete
from taskgate.core.tasks.task import UpstreamHandle
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.requests.large_results import summarized
from taskgate.gateway.requests.request import Request
from taskgate.mcp.json_errors import UNDECODABLE
from taskgate.turns import LARGE_BYTES


class _Error(msgspec.Struct):
    message: str = ""


_read_error: Final = msgspec.json.Decoder(_Error).decode


async def small_members(result: bytes) -> Mapping[str, Any]:
    """The decoded members of a result that was not decoded before. Large members of a large result are placeholders."""
    decoded = wire.parse_strictly(await summarized(result))
    return decoded if type(decoded) is dict else {}


def first_text_of(members: Mapping[str, Any]) -> str:
    """The first text of a decoded result; empty if it has none."""
    content = members.get("content")
    for block in content if type(content) is list else ():
        if type(block) is dict and type(text := block.get("text")) is str:
            return text
    return ""


def message_of(error: bytes) -> str:
    """The message of a JSON-RPC error object; empty if it cannot be read at once."""
    if len(error) >= LARGE_BYTES:
        return ""
    try:
        return _read_error(error).message
    except UNDECODABLE:
        return ""


def upstream_task(request: Request, tool: ToolRef, result: Mapping[str, Any]) -> UpstreamHandle | None:
    """The task handle in the result of a stateless server, for a caller that supports tasks."""
    task_id = result.get("taskId")
    if task_id is None or request.envelope is None or not request.envelope.accepts_tasks:
        return None
    if type(task_id) is not str or result.get("resultType") != "task":
        return None
    return UpstreamHandle(tool.server, task_id, None, Generation.STATELESS)


def as_tool_result(problem: UpstreamError, generation: Generation) -> bytes:
    """A failure as a tool result: models see results, and may never see protocol errors."""
    data = error_data(problem, secrets.token_hex(8), problem.executed)
    result = wire.encode(
        {
            "content": [{"type": "text", "text": problem.message}],
            "isError": True,
            "_meta": {"taskgate/error": data},
        }
    )
    return mark_complete(result) if generation is Generation.STATELESS else result
