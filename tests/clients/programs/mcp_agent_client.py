"""mcp-agent: an `Agent` with one server, whose tools it calls under names with the server's in front."""

from __future__ import annotations

import argparse
from typing import Any

from mcp.types import ElicitResult
from mcp_agent.agents.agent import Agent
from mcp_agent.app import MCPApp
from mcp_agent.config import LoggerSettings, MCPServerSettings, MCPSettings, Settings

from console import Console, asked, run


class Library:
    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def tools(self) -> list[str]:
        return [tool.name.removeprefix("gateway_") for tool in (await self.agent.list_tools()).tools]

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        result = await self.agent.call_tool(f"gateway_{tool}", arguments)
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)


async def elicit(*given: Any, **more: Any) -> ElicitResult:
    return ElicitResult(action="accept", content=asked(given[0].message))


async def main(chosen: argparse.Namespace) -> None:
    server = MCPServerSettings(name="gateway", transport="streamable_http", url=chosen.url)
    settings = Settings(
        execution_engine="asyncio", logger=LoggerSettings(type="none"), mcp=MCPSettings(servers={"gateway": server})
    )
    app = MCPApp(name="matrix", settings=settings, elicitation_callback=elicit)
    async with app.run() as running, Agent(name="agent", server_names=["gateway"], context=running.context) as agent:
        await Console(Library(agent)).attend()


if __name__ == "__main__":
    run(main)
