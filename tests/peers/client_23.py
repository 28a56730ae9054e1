"""A caller on `mcp` 2.3 that plays a script in either generation and prints what it saw, over HTTP or stdio."""

from __future__ import annotations

import argparse
import asyncio
import warnings
from contextlib import AsyncExitStack
from typing import Any

import mcp_types as t
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from script import Notebook, options, perform, report
from scripted import Operations, Person, dump

warnings.filterwarnings("ignore")
EVENT_METHODS = {
    "ToolsListChanged": "notifications/tools/list_changed",
    "ResourceUpdated": "notifications/resources/updated",
}


class Actions(Operations):
    """What this SDK does in its own way."""

    def __init__(self, client: Client, notebook: Notebook, stack: AsyncExitStack, stateless: bool) -> None:
        super().__init__(client, t, notebook)
        self.stack, self.stateless = stack, stateless
        self.listeners: list[asyncio.Task[None]] = []

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self.client.list_tools(cache_mode="bypass")).tools]

    async def templates(self) -> list[str]:
        return [kind.uri_template for kind in (await self.client.list_resource_templates()).resource_templates]

    async def read(self, uri: str) -> Any:
        return dump(await self.client.read_resource(uri))

    async def level(self, level: Any) -> Any:
        """Stateless requests carry the level the client was built with, so there is nothing to send."""
        return {} if self.stateless else dump(await self.client.set_logging_level(level))

    async def watch(self, uri: str) -> Any:
        if not self.stateless:
            return dump(await self.client.subscribe_resource(uri))
        subscription = await self.stack.enter_async_context(
            self.client.listen(resource_subscriptions=[uri], tools_list_changed=True)
        )
        self.listeners.append(asyncio.create_task(self.follow(subscription)))
        return {}

    async def follow(self, subscription: Any) -> None:
        async for event in subscription:
            self.notebook.notice(EVENT_METHODS[type(event).__name__])

    async def unwatch(self, uri: str) -> Any:
        for listener in self.listeners:
            listener.cancel()
        return {} if self.stateless else dump(await self.client.unsubscribe_resource(uri))

    async def ping(self) -> Any:
        return {} if self.stateless else dump(await self.client.send_ping())


async def main(chosen: argparse.Namespace) -> None:
    notebook = Notebook()
    person, stateless = Person(t, notebook), chosen.generation == "2026"
    target: Any = chosen.url
    if target is None:
        target = StdioServerParameters(command=chosen.command[0], args=chosen.command[1:])
    mode = "2026-07-28" if stateless else "legacy"
    client = Client(target, mode=mode, log_level="info", **person.callbacks(alone=chosen.alone))
    async with client, AsyncExitStack() as stack:
        actions = Actions(client, notebook, stack, stateless)
        report(await perform(chosen.script, actions, notebook))
        for listener in actions.listeners:
            listener.cancel()


if __name__ == "__main__":
    asyncio.run(main(options()))
