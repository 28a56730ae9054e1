"""The interface of a protocol generation, and the capabilities that this client declares.

A dialect converts calls, tasks and questions to the messages of one generation and back. A capability is declared exactly
when something can answer for it: a callback, a list of roots, or `answer_by_hand`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from taskgate.client.options import Generation, Options
from taskgate.client.results import Task, Tool
from taskgate.client.transport import Outgoing


class Dialect(Protocol):
    """One protocol generation, negotiated with one server."""

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
        """Return the outgoing request. May modify `params`."""
        ...

    def runs_tasks(self) -> bool:
        """Whether the server declares tool calls as tasks."""
        ...

    def created_task(self, result: dict[str, Any]) -> Task | None:
        """Return the task if the result of a tool call is one, else None."""
        ...

    def task(self, result: Any) -> Task:
        """Parse the task in a result or a notification. Raises InvalidReply."""
        ...


def member(tree: Mapping[str, Any], *path: str) -> Any:
    """Return the value at a path of nested objects, or None."""
    value: Any = tree
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


TASKS_EXTENSION = "io.modelcontextprotocol/tasks"


def stateful_capabilities(options: Options) -> dict[str, Any]:
    """Return the capabilities for `initialize`.

    `tasks.requests.tools` is not part of MCP (a client receives no tool calls), but some servers require it.
    """
    declared = _shared(options)
    if "roots" in declared:
        declared["roots"] = {"listChanged": True}
    if options.tasks:
        requests: dict[str, Any] = {"tools": {"call": {}}}
        if "sampling" in declared:
            requests["sampling"] = {"createMessage": {}}
        if "elicitation" in declared:
            requests["elicitation"] = {"create": {}}
        declared["tasks"] = {"list": {}, "cancel": {}, "requests": requests}
    return declared


def stateless_capabilities(options: Options) -> dict[str, Any]:
    """Return the capabilities for the envelope of each request."""
    declared = _shared(options)
    if options.tasks:
        declared["extensions"] = {TASKS_EXTENSION: {}}
    return declared


def _shared(options: Options) -> dict[str, Any]:
    declared: dict[str, Any] = {}
    if options.elicitation is not None or options.answer_by_hand:
        declared["elicitation"] = {"form": {}, "url": {}}
    if options.sampling is not None:
        declared["sampling"] = {"tools": {}} if options.sampling_tools else {}
    if options.roots is not None:
        declared["roots"] = {}
    return declared
