"""Google ADK: the tools of an `McpToolset`, declared for Gemini and run as an agent runs them."""

from __future__ import annotations

import argparse
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.sessions import InMemorySessionService
from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams
from google.adk.tools.tool_context import ToolContext
from mcp.types import ElicitResult

from console import Console, asked, run


class Library:
    def __init__(self, toolset: McpToolset, context: ToolContext) -> None:
        self.toolset, self.context = toolset, context
        self.known: dict[str, Any] = {}

    async def tools(self) -> list[str]:
        self.known = {tool.name: tool for tool in await self.toolset.get_tools()}
        for tool in self.known.values():
            # What is sent to the model.
            assert tool._get_declaration().name == tool.name
        return list(self.known)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        return await self.known[tool].run_async(args=arguments, tool_context=self.context)


async def elicit(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content=asked(params.message))


async def main(chosen: argparse.Namespace) -> None:
    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name="matrix", user_id="somebody")
    invocation = InvocationContext(
        invocation_id="one", agent=LlmAgent(name="agent"), session=session, session_service=sessions
    )
    connection = StreamableHTTPConnectionParams(url=chosen.url, timeout=60)
    toolset = McpToolset(connection_params=connection, elicitation_callback=elicit)
    try:
        await Console(Library(toolset, ToolContext(invocation, function_call_id="call"))).attend()
    finally:
        await toolset.close()


if __name__ == "__main__":
    run(main)
