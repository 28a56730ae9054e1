"""pydantic-ai: an agent whose model is a function that calls one tool; the toolset's own path from there on."""

from __future__ import annotations

import argparse
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from console import Console, asked, run


class Library:
    def __init__(self, toolset: MCPToolset[Any]) -> None:
        self.toolset = toolset

    async def tools(self) -> list[str]:
        return [tool.name for tool in await self.toolset.list_tools()]

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        returned: list[Any] = []

        async def model(messages: Any, info: Any) -> ModelResponse:
            last = messages[-1].parts[-1]
            if isinstance(last, ToolReturnPart):
                returned.append(last.content)
                return ModelResponse([TextPart("done")])
            if len(messages) > 1:
                raise RuntimeError(f"the agent received: {last.content}")
            return ModelResponse([ToolCallPart(tool, arguments)])

        await Agent(FunctionModel(model), toolsets=[self.toolset], retries=0).run("Call the tool.")
        return returned[0]


async def elicit(message: str, response_type: Any, params: Any, context: Any) -> Any:
    return asked(message)


async def main(chosen: argparse.Namespace) -> None:
    toolset: MCPToolset[Any] = MCPToolset(chosen.url, elicitation_handler=elicit)
    async with toolset:
        await Console(Library(toolset)).attend()


if __name__ == "__main__":
    run(main)
