"""Results that the gateway builds for a tool call, and task handles in the results of servers."""

from __future__ import annotations

import secrets

from taskgate.core import wire
from taskgate.core.errors import UpstreamError
from taskgate.core.generations.error_codes import error_data
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateless import mark_complete
from taskgate.core.tasks.task import UpstreamHandle
from taskgate.core.wire import Raw
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.requests.request import Request


def upstream_task(request: Request, tool: ToolRef, result: bytes) -> UpstreamHandle | None:
    """The task handle in the result of a stateless server, for a caller that knows tasks."""
    if request.envelope is None or b'"taskId"' not in result or not request.envelope.wants_tasks:
        return None
    members = wire.members_of(result)
    if bytes(members.get("resultType", Raw(b""))) != b'"task"':
        return None
    task_id = wire.parse_strictly(bytes(members.get("taskId", Raw(b"null"))))
    if type(task_id) is not str:
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
