"""llama-index: the tools that `McpToolSpec` makes; its client opens a session for each call."""

from __future__ import annotations

import argparse
from typing import Any

from llama_index.tools.mcp import BasicMCPClient, McpToolSpec

from console import Console, run


class Library:
    def __init__(self, client: BasicMCPClient) -> None:
        self.spec = McpToolSpec(client=client)
        self.known: dict[str, Any] = {}

    async def tools(self) -> list[str]:
        self.known = {tool.metadata.name: tool for tool in await self.spec.to_tool_list_async()}
        return list(self.known)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        output = await self.known[tool].acall(**arguments)
        return {"content": output.content, "is_error": output.is_error}


async def main(chosen: argparse.Namespace) -> None:
    await Console(Library(BasicMCPClient(chosen.url, timeout=60))).attend()


if __name__ == "__main__":
    run(main)
