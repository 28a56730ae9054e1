"""A stdio server on `mcp` 1.30 whose tools ask while another call is open: a question then names no call.

`stay` returns when an asking tool has its answer, and an asking tool asks once `stay` is open. They meet in a folder that the
caller names, so a test needs no timing to have both in flight when the question arrives, in one process or in two.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import mcp.types as t
from mcp.server.fastmcp import Context, FastMCP
from pydantic import BaseModel

server = FastMCP("meeting", log_level="ERROR")
STAYING, ANSWERED = "staying", "answered"


class Name(BaseModel):
    name: str


async def until(mark: Path) -> None:
    while not mark.exists():
        await asyncio.sleep(0.02)


async def beside(folder: str, ask: Callable[[], Awaitable[str]]) -> str:
    """Ask once `stay` is open there, and let it return afterwards. Without a folder: at once."""
    if not folder:
        return await ask()
    await until(Path(folder) / STAYING)
    try:
        return await ask()
    finally:
        (Path(folder) / ANSWERED).touch()


@server.tool()
async def stay(folder: str) -> str:
    """Return when an asking tool has its answer."""
    (Path(folder) / STAYING).touch()
    await until(Path(folder) / ANSWERED)
    return "stayed"


@server.tool()
async def ask(context: Context[Any, Any, Any], folder: str = "") -> str:
    """Ask for a name."""

    async def asking() -> str:
        answer = await context.elicit("What is your name?", Name)
        return f"accept:{answer.data.name}" if answer.action == "accept" else answer.action

    return await beside(folder, asking)


@server.tool()
async def sample(context: Context[Any, Any, Any], folder: str = "") -> str:
    """Ask the caller's model."""

    async def asking() -> str:
        message = t.SamplingMessage(role="user", content=t.TextContent(type="text", text="Say hello"))
        answer = await context.session.create_message([message], max_tokens=20)
        return str(answer.content.text)

    return await beside(folder, asking)


@server.tool()
async def roots(context: Context[Any, Any, Any], folder: str = "") -> str:
    """Ask for the caller's roots."""

    async def asking() -> str:
        return ",".join(str(root.uri) for root in (await context.session.list_roots()).roots)

    return await beside(folder, asking)


@server.tool()
def process() -> str:
    """The number of the process that answers."""
    return str(os.getpid())


if __name__ == "__main__":
    server.run()
