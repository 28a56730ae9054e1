"""`mcp` 1.30: `ClientSession.call_tool`, over HTTP or stdio."""

from __future__ import annotations

import argparse
from contextlib import AsyncExitStack
from typing import Any

import mcp.types as t
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from console import Console, asked, run


class Library:
    def __init__(self, session: ClientSession) -> None:
        self.session = session

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self.session.list_tools()).tools]

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        result = await self.session.call_tool(tool, arguments)
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)


async def elicit(context: Any, params: t.ElicitRequestParams) -> t.ElicitResult:
    return t.ElicitResult(action="accept", content=asked(params.message))


async def main(chosen: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        if chosen.url:
            reader, writer, _ = await stack.enter_async_context(streamable_http_client(chosen.url))
        else:
            server = StdioServerParameters(command=chosen.command[0], args=chosen.command[1:])
            reader, writer = await stack.enter_async_context(stdio_client(server))
        session = await stack.enter_async_context(ClientSession(reader, writer, elicitation_callback=elicit))
        await session.initialize()
        await Console(Library(session)).attend()


if __name__ == "__main__":
    run(main)
