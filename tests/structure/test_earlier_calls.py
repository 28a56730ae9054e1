"""The lists of methods and tools that refer to earlier calls name what the gateway has, and miss none of it."""

from __future__ import annotations

from typing import Any

import pytest

from taskgate.gateway.method_tables import MethodTables
from taskgate.gateway.own_tools.search_tools import SEARCH_TOOLS
from taskgate.gateway.own_tools.table import TOOLS
from taskgate.mcp.earlier_calls import ABOUT_TASKS, CALL_BY_NAME, TASK_TOOLS, is_about_tasks, is_later_round


def test_own_tools_about_tasks_and_questions_are_listed() -> None:
    takes_id = {
        name
        for name, tool in TOOLS.items()
        if any(parameter.name in ("task_id", "task_ids", "request_id") for parameter in tool.face.parameters)
    }
    assert takes_id <= TASK_TOOLS
    assert TOOLS.keys() >= TASK_TOOLS
    assert CALL_BY_NAME in {tool.face.name for tool in SEARCH_TOOLS}


def test_task_methods_are_listed() -> None:
    class Anything:
        def __getattr__(self, _name: str) -> Any:
            return self

        def __call__(self) -> None:
            raise AssertionError("nothing is called here")

    tables = MethodTables(Anything(), None)  # type: ignore[arg-type]
    methods = tables.stateful().keys() | tables.stateless().keys()
    assert {method for method in methods if method.startswith("tasks/")} <= ABOUT_TASKS
    assert "tasks/create" not in ABOUT_TASKS, "it runs a tool"


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        ("tasks/get", {}, True),
        ("tools/call", {"name": "get_task_result", "arguments": {"task_id": "x"}}, True),
        ("tools/call", {"name": "call_tool", "arguments": {"name": "cancel_task"}}, True),
        ("tools/call", {"name": "call_tool", "arguments": {"name": "files__read"}}, False),
        ("tools/call", {"name": "call_tool", "arguments": [1]}, False),
        ("tools/call", {"name": ["x"]}, False),
        ("tools/call", {"name": "files__read"}, False),
        ("tools/call", {}, False),
        ("tasks/create", {}, False),
        ("tools/list", {"name": "get_task"}, False),
    ],
)
def test_requests_about_tasks(method: str, params: dict[str, Any], expected: bool) -> None:
    assert is_about_tasks(method, params) is expected


def test_later_round() -> None:
    assert is_later_round({"requestState": None})
    assert not is_later_round({"inputResponses": {}})
