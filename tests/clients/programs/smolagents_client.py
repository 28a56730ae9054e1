"""smolagents: the tools that `MCPClient` (on mcpadapt) makes, called as an agent calls them: in a thread, which nothing stops."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from smolagents import MCPClient

from console import Console, run


class Library:
    def __init__(self, client: MCPClient) -> None:
        self.known = {tool.name: tool for tool in client.get_tools()}

    async def tools(self) -> list[str]:
        return list(self.known)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        return await asyncio.to_thread(self.known[tool], **arguments)


async def main(chosen: argparse.Namespace) -> None:
    client = await asyncio.to_thread(
        MCPClient, {"url": chosen.url, "transport": "streamable-http"}, structured_output=True
    )
    try:
        await Console(Library(client)).attend()
    finally:
        await asyncio.to_thread(client.disconnect)


if __name__ == "__main__":
    run(main)
