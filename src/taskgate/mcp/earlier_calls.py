"""Recognize requests that refer to an earlier call: task requests, and later rounds of a multi-round call.

In an error for such a request, `executed` describes the earlier call. A rejected, lost or unsent request proves nothing about that
call, so the error must not report `executed: no` on that ground. Used by the gateway, the bridge and the client library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ABOUT_TASKS: Final = frozenset(
    {
        "tasks/get",
        "tasks/result",
        "tasks/update",
        "tasks/cancel",
        "tasks/list",
        "subscriptions/listen",
        "requests/cancel",
    }
)
"""Methods that refer to calls started by other requests. They run no tool themselves."""
TASK_TOOLS: Final = frozenset(
    {
        "list_tasks",
        "show_tasks",
        "get_task",
        "get_task_result",
        "cancel_task",
        "await_activity",
        "get_elicitations",
        "respond_to_elicitation",
        "cancel_elicitation_request",
        "get_sampling_requests",
        "respond_to_sampling",
        "cancel_sampling_request",
    }
)
"""The gateway's own tools that refer to such calls."""
CALL_BY_NAME: Final = "call_tool"
"""The gateway's own tool that calls another tool, possibly one of `TASK_TOOLS`."""


def is_about_tasks(method: str, params: Mapping[str, Any]) -> bool:
    """Return whether the request queries, answers or cancels earlier calls and runs no tool itself."""
    if method != "tools/call":
        return method in ABOUT_TASKS
    name = params.get("name")
    if name == CALL_BY_NAME:
        arguments = params.get("arguments")
        name = arguments.get("name") if isinstance(arguments, Mapping) else None
    return isinstance(name, str) and name in TASK_TOOLS


def is_later_round(params: Mapping[str, Any]) -> bool:
    """Return whether the request continues a call whose earlier round returned input requests: the call has started."""
    return "requestState" in params
