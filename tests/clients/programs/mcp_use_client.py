"""mcp-use: the LangChain tools that its adapter makes of a server's tools."""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ["MCP_USE_ANONYMIZED_TELEMETRY"] = "false"

from mcp.types import ElicitResult
from mcp_use import MCPClient
from mcp_use.agents.adapters.langchain_adapter import LangChainAdapter

from console import Console, asked, run


class Library:
    def __init__(self, client: MCPClient) -> None:
        self.client = client
        self.known: dict[str, Any] = {}

    async def tools(self) -> list[str]:
        self.known = {tool.name: tool for tool in await LangChainAdapter().create_tools(self.client)}
        return list(self.known)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        return str(await self.known[tool].ainvoke(arguments))


async def elicit(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content=asked(params.message))


async def main(chosen: argparse.Namespace) -> None:
    client = MCPClient({"mcpServers": {"gateway": {"url": chosen.url}}}, elicitation_callback=elicit)
    try:
        await Console(Library(client)).attend()
    finally:
        await client.close_all_sessions()


if __name__ == "__main__":
    run(main)
