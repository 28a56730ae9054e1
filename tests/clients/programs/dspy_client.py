"""DSPy: tools made from an MCP session with `Tool.from_mcp_tool`, each with arguments that DSPy describes to a model."""

from __future__ import annotations

import argparse
from typing import Any

import dspy
from mcp import Client
from mcp.types import ElicitResult

from console import Console, asked, run


class Library:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.known: dict[str, dspy.Tool] = {}

    async def tools(self) -> list[str]:
        listed = (await self.client.list_tools()).tools
        self.known = {tool.name: dspy.Tool.from_mcp_tool(self.client.session, tool) for tool in listed}
        return [tool.format_as_litellm_function_call()["function"]["name"] for tool in self.known.values()]

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        return await self.known[tool].acall(**arguments)


async def elicit(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content=asked(params.message))


async def main(chosen: argparse.Namespace) -> None:
    async with Client(chosen.url, mode="legacy", elicitation_callback=elicit) as client:
        await Console(Library(client)).attend()


if __name__ == "__main__":
    run(main)
