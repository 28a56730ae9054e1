"""Own tools, reserved names, wiring and documentation agree, so that no server can shadow a tool of the gateway."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.virtual_time import Gateway, virtual_time

from taskgate.core.catalog.names import CollisionReason, NameStyle, NameTable
from taskgate.core.catalog.own_tool_names import SCRIPT_NAMES, OwnToolName
from taskgate.core.catalog.own_tools import Family
from taskgate.gateway.own_tools.table import LOCAL_STATE_TOOLS, TOOLS

PAGE = Path(__file__).parents[2] / "docs" / "facade.md"
SCOPES = {"facade": {"mode": "facade"}, "search": {"mode": "search"}}


def test_every_declared_tool_has_a_reserved_name_and_every_name_a_tool() -> None:
    assert set(TOOLS) == set(OwnToolName)


@pytest.mark.parametrize("name", sorted(TOOLS.keys() - SCRIPT_NAMES))
def test_a_server_cannot_list_a_tool_under_the_name_of_an_own_tool(name: str) -> None:
    table = NameTable.build([("a", name)], NameStyle.PLAIN)
    assert table.to_wire == {}
    assert [collision.reason for collision in table.refused] == [CollisionReason.RESERVED]


def test_tools_with_state_in_memory_are_called_at_one_gateway() -> None:
    assert OwnToolName.SET_TIMER in LOCAL_STATE_TOOLS
    assert OwnToolName.GET_TASK not in LOCAL_STATE_TOOLS


@virtual_time
async def test_every_declared_tool_is_bound_to_its_parts() -> None:
    unbound = []
    async with Gateway({"scopes": SCOPES}, {}) as gate:
        for name, tool in TOOLS.items():
            if tool.face.family is Family.SCRIPT:
                # Needs an optional library; tests of scripts call it.
                continue
            scope = "search" if tool.face.family is Family.SEARCH else "facade"
            caller = await gate.caller("2026", scope=scope)
            reply = await caller.call(name, {"no_such_parameter": 1})
            if reply.last.get("error", {}).get("data", {}).get("error_type") == "unknown_tool":
                unbound.append(name)
    assert unbound == [], "bind the tools of a new module in `_own_tools` of gateway/wiring/use_cases.py"


def test_every_declared_tool_is_documented() -> None:
    documented = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    assert set(TOOLS) - documented == set(), "add a row to docs/facade.md"
