"""openai-agents: the function tools that the SDK makes of an MCP server, invoked as its runner does."""

from __future__ import annotations

import argparse
import json
from typing import Any

from agents import Agent, RunContextWrapper
from agents.mcp import MCPServerStreamableHttp, MCPUtil
from agents.tool_context import ToolContext

from console import Console, run


class Library:
    def __init__(self, server: MCPServerStreamableHttp) -> None:
        self.server, self.agent = server, Agent(name="matrix", mcp_servers=[server])
        self.known: dict[str, Any] = {}

    async def tools(self) -> list[str]:
        found = await MCPUtil.get_function_tools(self.server, False, RunContextWrapper(None), self.agent)
        self.known = {tool.name: tool for tool in found}
        return list(self.known)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        given = json.dumps(arguments)
        context = ToolContext(None, tool_name=tool, tool_call_id="call-1", tool_arguments=given)
        return await self.known[tool].on_invoke_tool(context, given)


async def main(chosen: argparse.Namespace) -> None:
    async with MCPServerStreamableHttp({"url": chosen.url}, client_session_timeout_seconds=60) as server:
        await Console(Library(server)).attend()


if __name__ == "__main__":
    run(main)
