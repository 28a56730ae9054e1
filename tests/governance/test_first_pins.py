"""First pins of many tools are stored together, and one that cannot be stored does not prevent the others."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.virtual_time import Call, Gateway, Upstream

from taskgate.turns import PORTION

pytestmark = pytest.mark.virtual_time
NAMES = {f"tool_{number}" for number in range(70)}


def server() -> Upstream:
    upstream = Upstream("both")

    async def echo(call: Call) -> str:
        return str(call.arguments)

    for name in NAMES:
        upstream.tool(name, echo)
    return upstream


def pinned(gate: Gateway) -> set[str]:
    with sqlite3.connect(gate.state / "taskgate.db") as database:
        return {row[0] for row in database.execute("SELECT tool FROM pins")} & NAMES


async def test_first_pin_of_every_tool_is_stored_and_recorded(tmp_path: Path) -> None:
    async with Gateway({}, {"s": server()}, folder=tmp_path) as gate:
        await (await gate.caller("2025")).tools()
        await gate.advance(5)
        assert pinned(gate) == NAMES
        rows = (await gate.operator("GET", "/api/v1/audit?event=tool_pinned&limit=200")).json()
        assert {row["name"] for row in rows["rows"]} >= NAMES


async def test_pins_that_are_found_while_others_are_stored_are_written_in_order_of_their_keys(tmp_path: Path) -> None:
    async with Gateway({}, {"s": server()}, folder=tmp_path) as gate:
        await (await gate.caller("2025")).tools()
        await gate.advance(5)
        rows = (await gate.operator("GET", "/api/v1/audit?event=tool_pinned&limit=200")).json()["rows"]
        names = [row["name"] for row in sorted(rows, key=lambda row: row["number"]) if row["name"] in NAMES]
        assert names[PORTION:] == sorted(names[PORTION:])
        assert len(names) == len(NAMES)


async def test_pin_that_cannot_be_stored_does_not_prevent_the_others(tmp_path: Path) -> None:
    gate = Gateway({}, {"s": server()}, folder=tmp_path)
    async with gate:
        pass
    with sqlite3.connect(gate.state / "taskgate.db") as database:
        database.execute("DELETE FROM pins")
        database.execute(
            "CREATE TRIGGER refused BEFORE INSERT ON pins WHEN NEW.tool = 'tool_3' BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    async with gate:
        await (await gate.caller("2025")).tools()
        await gate.advance(5)
        assert pinned(gate) == NAMES - {"tool_3"}
