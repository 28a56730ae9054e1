"""Own tools and reserved names are one list, so that no server can shadow a tool of the gateway."""

from __future__ import annotations

import pytest

from taskgate.core.catalog.names import CollisionReason, NameStyle, NameTable
from taskgate.core.catalog.own_tool_names import SCRIPT_NAMES, OwnToolName
from taskgate.gateway.own_tools.table import LOCAL_STATE_TOOLS, TOOLS


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
