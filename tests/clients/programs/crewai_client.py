"""crewai: the tools that an agent's `mcps` become; each call opens a session."""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any

os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"

from crewai.mcp import MCPServerHTTP
from crewai.mcp.tool_resolver import MCPToolResolver
from crewai.utilities.logger import Logger

from console import Console, run


class Library:
    def __init__(self, url: str) -> None:
        self.resolver = MCPToolResolver(agent=None, logger=Logger())
        self.server = MCPServerHTTP(url=url)
        self.known: dict[str, Any] = {}

    async def tools(self) -> list[str]:
        found = await asyncio.to_thread(self.resolver.resolve, [self.server])
        self.known = {tool.original_tool_name: tool for tool in found}
        return list(self.known)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        return str(await self.known[tool]._run_async(**arguments))


async def main(chosen: argparse.Namespace) -> None:
    library = Library(chosen.url)
    try:
        await Console(library).attend()
    finally:
        await asyncio.to_thread(library.resolver.cleanup)


if __name__ == "__main__":
    run(main)
