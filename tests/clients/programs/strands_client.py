"""Strands: the tools of an `MCPClient`, which holds its session in a thread of its own."""

from __future__ import annotations

import argparse
import asyncio
import itertools
from typing import Any

from mcp.types import ElicitResult
from strands.tools.mcp import MCPClient

from console import Console, asked, run


class Library:
    def __init__(self, client: MCPClient) -> None:
        self.client, self.ids = client, itertools.count(1)

    async def tools(self) -> list[str]:
        found = await asyncio.to_thread(self.client.list_tools_sync)
        return [tool.tool_spec["name"] for tool in found]

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        return await self.client.call_tool_async(f"use-{next(self.ids)}", tool, arguments)


async def elicit(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content=asked(params.message))


async def main(chosen: argparse.Namespace) -> None:
    client = MCPClient(url=chosen.url, elicitation_callback=elicit)
    await asyncio.to_thread(client.start)
    try:
        await Console(Library(client)).attend()
    finally:
        await asyncio.to_thread(client.stop, None, None, None)


if __name__ == "__main__":
    run(main)
