"""The server behind the clients: typed tools on `mcp` 2.3, in both generations, and a ledger of executed calls.

Every tool has an output schema with definitions of its own, as each typed tool of an SDK has. Nothing here takes time: `report`
works until `release` is called for its key, so no test depends on how fast a machine is.

    python typed_server.py --http 9100 --ledger /tmp/ledger.jsonl
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import anyio
from mcp.server.mcpserver import AcceptedElicitation, Elicit, ElicitationResult, MCPServer, Resolve
from pydantic import BaseModel, ConfigDict

parser = argparse.ArgumentParser()
parser.add_argument("--http", type=int, required=True)
parser.add_argument("--ledger", type=Path, required=True)
chosen = parser.parse_args()
server = MCPServer("typed")
releases: dict[str, anyio.Event] = {}


class Line(BaseModel):
    label: str
    cents: int


class Report(BaseModel):
    key: str
    lines: list[Line]


class Sizes(BaseModel):
    """What FastMCP servers list for a tool that returns no object."""

    model_config = ConfigDict(json_schema_extra={"x-fastmcp-wrap-result": True})
    result: list[int]


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    note: str | None = None
    key: str
    made: datetime


class Colour(BaseModel):
    colour: str


def note(happened: str, key: str) -> None:
    with chosen.ledger.open("a") as ledger:
        ledger.write(json.dumps({"happened": happened, "key": key}) + "\n")


def release_of(key: str) -> anyio.Event:
    return releases.setdefault(key, anyio.Event())


def made(key: str, label: str) -> Report:
    return Report(key=key, lines=[Line(label=label, cents=250)])


@server.tool()
async def report(key: str) -> Report:
    """Work until released."""
    note("began", key)
    try:
        await release_of(key).wait()
    except anyio.get_cancelled_exc_class():
        note("cancelled", key)
        raise
    note("finished", key)
    return made(key, "reported")


@server.tool()
async def release(key: str) -> Report:
    """Let a report end."""
    release_of(key).set()
    return made(key, "released")


@server.tool()
async def pay(key: str) -> Report:
    """Pay at once; a rule of the gateway requires approval."""
    note("paid", key)
    return made(key, "paid")


@server.tool()
async def counts(key: str) -> dict[str, int]:
    """A mapping."""
    return {key: 3, "other": 4}


@server.tool()
async def sizes(key: str) -> Sizes:
    """Numbers, wrapped."""
    return Sizes(result=[len(key), 2])


@server.tool()
async def closed(key: str) -> Closed:
    """An object that allows no other properties."""
    return Closed(key=key, made=datetime(2026, 1, 2, tzinfo=UTC))


def ask_colour() -> Elicit[Colour]:
    return Elicit("Which colour?", Colour)


@server.tool()
async def paint(key: str, answer: Annotated[ElicitationResult[Colour], Resolve(ask_colour)]) -> Report:
    """Ask the caller for a colour."""
    found = answer.data.colour if isinstance(answer, AcceptedElicitation) else answer.action
    note(f"painted {found}", key)
    return made(key, found)


if __name__ == "__main__":
    server.run("streamable-http", host="127.0.0.1", port=chosen.http)
