"""Requests that refer to an earlier call: questions about tasks, and later rounds of one call.

An error for such a request describes the earlier call with its `executed`. That this request was refused, was lost or never left
proves nothing about that call, so such an error must not claim `executed: no` by itself.

Pure and small: the gateway, the bridge and the client library use it.
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
"""Methods about calls that other requests carried. They run no tool themselves."""
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
"""The gateway's own tools that are about such calls."""
CALL_BY_NAME: Final = "call_tool"
"""The gateway's own tool that calls another one, which may be one of `TASK_TOOLS`."""


def is_about_tasks(method: str, params: Mapping[str, Any]) -> bool:
    """Whether the request asks about, answers or cancels earlier calls and runs no tool itself."""
    if method != "tools/call":
        return method in ABOUT_TASKS
    name = params.get("name")
    if name == CALL_BY_NAME:
        arguments = params.get("arguments")
        name = arguments.get("name") if isinstance(arguments, Mapping) else None
    return isinstance(name, str) and name in TASK_TOOLS


def is_later_round(params: Mapping[str, Any]) -> bool:
    """Whether an earlier round of the same call was answered with a question: the call had begun."""
    return "requestState" in params
