"""langchain: the tools that `langchain-mcp-adapters` makes; it opens a session for each call."""

from __future__ import annotations

import argparse
import itertools
from typing import Any

from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp.types import ElicitResult

from console import Console, asked, run


class Library:
    def __init__(self, client: MultiServerMCPClient) -> None:
        self.client, self.ids = client, itertools.count(1)
        self.known: dict[str, Any] = {}

    async def tools(self) -> list[str]:
        self.known = {tool.name: tool for tool in await self.client.get_tools()}
        return list(self.known)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        call = {"type": "tool_call", "id": f"call-{next(self.ids)}", "name": tool, "args": arguments}
        message = await self.known[tool].ainvoke(call)
        # langchain gives each block an id of its own.
        content = [{key: value for key, value in block.items() if key != "id"} for block in message.content]
        return {"content": content, "artifact": message.artifact, "status": message.status}


async def elicit(context: Any, params: Any, about: Any) -> ElicitResult:
    return ElicitResult(action="accept", content=asked(params.message))


async def main(chosen: argparse.Namespace) -> None:
    servers: Any = {"gateway": {"url": chosen.url, "transport": "streamable_http"}}
    client = MultiServerMCPClient(servers, callbacks=Callbacks(on_elicitation=elicit))
    await Console(Library(client)).attend()


if __name__ == "__main__":
    run(main)
