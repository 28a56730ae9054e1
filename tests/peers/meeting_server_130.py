"""A stdio server on `mcp` 1.30 whose tools ask while another call is open: a question then names no call.

`stay` returns when an asking tool has its answer; an asking tool asks once as many `stay` calls are open as it was given. So a test
needs no timing to have several calls in flight when the question arrives.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import mcp.types as t
from mcp.server.fastmcp import Context, FastMCP
from pydantic import BaseModel

server = FastMCP("meeting", log_level="ERROR")
staying = 0
arrived = asyncio.Event()
answered = asyncio.Event()


class Name(BaseModel):
    name: str


async def beside(company: int, ask: Callable[[], Awaitable[str]]) -> str:
    """Ask once `company` calls of `stay` are open, and let them return afterwards."""
    while staying < company:
        arrived.clear()
        await arrived.wait()
    try:
        return await ask()
    finally:
        answered.set()


@server.tool()
async def stay() -> str:
    """Return when an asking tool has its answer."""
    global staying
    answered.clear()
    staying += 1
    arrived.set()
    try:
        await answered.wait()
    finally:
        staying -= 1
    return "stayed"


@server.tool()
async def ask(context: Context[Any, Any, Any], company: int = 0) -> str:
    """Ask for a name."""

    async def asking() -> str:
        answer = await context.elicit("What is your name?", Name)
        return f"accept:{answer.data.name}" if answer.action == "accept" else answer.action

    return await beside(company, asking)


@server.tool()
async def sample(context: Context[Any, Any, Any], company: int = 0) -> str:
    """Ask the caller's model."""

    async def asking() -> str:
        message = t.SamplingMessage(role="user", content=t.TextContent(type="text", text="Say hello"))
        answer = await context.session.create_message([message], max_tokens=20)
        return str(answer.content.text)

    return await beside(company, asking)


@server.tool()
async def roots(context: Context[Any, Any, Any], company: int = 0) -> str:
    """Ask for the caller's roots."""

    async def asking() -> str:
        return ",".join(str(root.uri) for root in (await context.session.list_roots()).roots)

    return await beside(company, asking)


@server.tool()
def process() -> str:
    """The number of the process that answers."""
    return str(os.getpid())


if __name__ == "__main__":
    server.run()
