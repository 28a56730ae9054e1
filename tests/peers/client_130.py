"""A caller on `mcp` 1.30 (2025-11-25) that plays a script and prints what it saw, over HTTP or stdio."""

from __future__ import annotations

import argparse
import asyncio
import warnings
from contextlib import AsyncExitStack
from typing import Any

import mcp.types as t
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import AnyUrl
from script import Notebook, options, perform, report
from scripted import Operations, Person, dump

warnings.filterwarnings("ignore")


class Actions(Operations):
    """What this SDK does in its own way."""

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self.client.list_tools()).tools]

    async def templates(self) -> list[str]:
        return [kind.uriTemplate for kind in (await self.client.list_resource_templates()).resourceTemplates]

    async def read(self, uri: str) -> Any:
        return dump(await self.client.read_resource(AnyUrl(uri)))

    async def level(self, level: Any) -> Any:
        return dump(await self.client.set_logging_level(level))

    async def watch(self, uri: str) -> Any:
        return dump(await self.client.subscribe_resource(AnyUrl(uri)))

    async def unwatch(self, uri: str) -> Any:
        return dump(await self.client.unsubscribe_resource(AnyUrl(uri)))

    async def ping(self) -> Any:
        return dump(await self.client.send_ping())

    async def task(self, name: str, arguments: dict[str, Any], cancel: bool = False) -> Any:
        """Run a tool as a task: create, read the result while it works, and check the state at the end."""
        experimental = self.client.experimental
        created = await experimental.call_tool_as_task(name, arguments, ttl=60_000)
        task_id = created.task.taskId
        if cancel:
            return {"status": (await experimental.cancel_task(task_id)).status}
        result = await experimental.get_task_result(task_id, t.CallToolResult)
        listed = task_id in [task.taskId for task in (await experimental.list_tasks()).tasks]
        return {"status": (await experimental.get_task(task_id)).status, "result": dump(result), "listed": listed}


async def main(chosen: argparse.Namespace) -> None:
    notebook = Notebook()
    person = Person(t, notebook)
    async with AsyncExitStack() as stack:
        if chosen.url:
            reader, writer, _ = await stack.enter_async_context(streamable_http_client(chosen.url))
        else:
            server = StdioServerParameters(command=chosen.command[0], args=chosen.command[1:])
            reader, writer = await stack.enter_async_context(stdio_client(server))
        session = ClientSession(reader, writer, **person.callbacks(alone=chosen.alone))
        await stack.enter_async_context(session)
        await session.initialize()
        report(await perform(chosen.script, Actions(session, t, notebook), notebook))


if __name__ == "__main__":
    asyncio.run(main(options()))
