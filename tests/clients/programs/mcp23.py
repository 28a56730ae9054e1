"""`mcp` 2.3: `Client.call_tool`, in either generation, over HTTP or stdio."""

from __future__ import annotations

import argparse
from typing import Any

import mcp_types as t
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from console import Console, asked, run


class Library:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self.client.list_tools()).tools]

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        result = await self.client.call_tool(tool, arguments)
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)


async def elicit(context: Any, params: Any) -> t.ElicitResult:
    return t.ElicitResult(action="accept", content=asked(params.message))


async def main(chosen: argparse.Namespace) -> None:
    target: Any = chosen.url
    if target is None:
        target = StdioServerParameters(command=chosen.command[0], args=chosen.command[1:])
    mode = "2026-07-28" if chosen.generation == "2026" else "legacy"
    async with Client(target, mode=mode, elicitation_callback=elicit) as client:
        await Console(Library(client)).attend()


if __name__ == "__main__":
    run(main)
