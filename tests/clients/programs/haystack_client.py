"""Haystack: the tools of an `MCPToolset`, invoked as a pipeline invokes them: in a thread."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from haystack_integrations.tools.mcp import MCPToolset, StreamableHttpServerInfo

from console import Console, run


class Library:
    def __init__(self, toolset: MCPToolset) -> None:
        self.known = {tool.name: tool for tool in toolset}

    async def tools(self) -> list[str]:
        return [self.known[name].tool_spec["name"] for name in self.known]

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        return await asyncio.to_thread(self.known[tool].invoke, **arguments)


async def main(chosen: argparse.Namespace) -> None:
    server = StreamableHttpServerInfo(url=chosen.url)
    toolset = await asyncio.to_thread(MCPToolset, server, eager_connect=True)
    try:
        await Console(Library(toolset)).attend()
    finally:
        await asyncio.to_thread(toolset.close)


if __name__ == "__main__":
    run(main)
