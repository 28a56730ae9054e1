"""FastMCP 2.14 and 4.1: `fastmcp.Client.call_tool`, which also builds typed data from the listed output schema."""

from __future__ import annotations

import argparse
from typing import Any

import fastmcp
from fastmcp import Client
from pydantic_core import to_jsonable_python

from console import Console, asked, run

MODES = {"2025": "legacy", "2026": "2026-07-28"}


class Library:
    def __init__(self, client: Client[Any]) -> None:
        self.client = client

    async def tools(self) -> list[str]:
        return [tool.name for tool in await self.client.list_tools()]

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        result = await self.client.call_tool(tool, arguments)
        content = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
        data = {"type": type(result.data).__name__, "value": to_jsonable_python(result.data)}
        return {"content": content, "structuredContent": result.structured_content, "data": data}


async def elicit(message: str, response_type: Any, params: Any, context: Any) -> Any:
    return asked(message)


async def main(chosen: argparse.Namespace) -> None:
    negotiation = {} if fastmcp.__version__.startswith("2.") else {"mode": MODES[chosen.generation]}
    async with Client(chosen.url, elicitation_handler=elicit, **negotiation) as client:
        await Console(Library(client)).attend()


if __name__ == "__main__":
    run(main)
