"""What the session needs to know from a generation: how a request is framed and how a task is spelt.

The session speaks of calls, tasks and questions; a dialect turns them into one generation's messages and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from taskgate.client.options import Generation
from taskgate.client.results import Task, Tool
from taskgate.client.transport.carrier import Outgoing


class Dialect(Protocol):
    """One generation, agreed with one server."""

    generation: Generation
    version: str
    capabilities: Mapping[str, Any]
    server_info: Mapping[str, Any]
    instructions: str | None

    def frame(
        self,
        request_id: int | str,
        method: str,
        params: dict[str, Any],
        tool: Tool | None = None,
        *,
        long: bool = False,
    ) -> Outgoing:
        """The request as it goes out. `params` may be changed."""
        ...

    def runs_tasks(self) -> bool:
        """Whether the server said that it runs tool calls as tasks."""
        ...

    def created_task(self, result: dict[str, Any]) -> Task | None:
        """The task, if this result of a tool call is one."""
        ...

    def task(self, result: Any) -> Task:
        """The task in a reply or a notification about it."""
        ...


def member(tree: Mapping[str, Any], *path: str) -> Any:
    """The value at a path of nested objects, or None where the path ends early."""
    value: Any = tree
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value
