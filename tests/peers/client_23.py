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
from script import ROOT, SPOKEN, Notebook, options, perform, report

warnings.filterwarnings("ignore")
EVENT_METHODS = {
    "ToolsListChanged": "notifications/tools/list_changed",
    "ResourceUpdated": "notifications/resources/updated",
}


def dump(result: Any) -> Any:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


class Actions:
    """One method per operation of a script."""

    def __init__(self, client: Client, notebook: Notebook, stack: AsyncExitStack, stateless: bool) -> None:
        self.client, self.notebook, self.stack, self.stateless = client, notebook, stack, stateless
        self.listeners: list[asyncio.Task[None]] = []

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self.client.list_tools(cache_mode="bypass")).tools]

    async def resources(self) -> list[str]:
        return [str(resource.uri) for resource in (await self.client.list_resources()).resources]

    async def templates(self) -> list[str]:
        return [kind.uri_template for kind in (await self.client.list_resource_templates()).resource_templates]

    async def prompts(self) -> list[str]:
        return [prompt.name for prompt in (await self.client.list_prompts()).prompts]

    async def call(self, name: str, arguments: dict[str, Any], progress: bool = False) -> Any:
        async def note(done: float, total: float | None, message: str | None) -> None:
            self.notebook.progress.append([done, total, message])

        return dump(await self.client.call_tool(name, arguments, progress_callback=note if progress else None))

    async def read(self, uri: str) -> Any:
        return dump(await self.client.read_resource(uri))

    async def prompt(self, name: str, arguments: dict[str, str]) -> Any:
        return dump(await self.client.get_prompt(name, arguments))

    async def complete(self, prompt: str, argument: str, value: str) -> Any:
        reference = t.PromptReference(type="ref/prompt", name=prompt)
        return dump(await self.client.complete(reference, {"name": argument, "value": value}))

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

    async def notice(self, method: str) -> str:
        return await self.notebook.wait_for(method)

    async def ping(self) -> Any:
        return {} if self.stateless else dump(await self.client.send_ping())


class Person:
    """Answers what the server asks."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook

    async def elicit(self, context: Any, params: Any) -> t.ElicitResult:
        if params.mode == "url":
            self.notebook.questions.append(["url", params.message, str(params.url)])
            return t.ElicitResult(action="accept")
        self.notebook.questions.append(["form", params.message])
        return t.ElicitResult(action="accept", content={"name": self.notebook.next_name()})

    async def sample(self, context: Any, params: Any) -> t.CreateMessageResult:
        self.notebook.questions.append(["sampling", params.messages[0].content.text])
        return t.CreateMessageResult(role="assistant", content=t.TextContent(type="text", text=SPOKEN), model="none")

    async def roots(self, context: Any) -> t.ListRootsResult:
        self.notebook.questions.append(["roots"])
        return t.ListRootsResult.model_validate({"roots": [{"uri": ROOT}]})

    async def log(self, params: t.LoggingMessageNotificationParams) -> None:
        self.notebook.logs.append([params.level, params.data])

    async def message(self, message: Any) -> None:
        if method := getattr(message, "method", None):
            self.notebook.notice(method)


async def main(chosen: argparse.Namespace) -> None:
    notebook = Notebook()
    person, stateless = Person(notebook), chosen.generation == "2026"
    target: Any = chosen.url
    if target is None:
        target = StdioServerParameters(command=chosen.command[0], args=chosen.command[1:])
    client = Client(
        target,
        mode="2026-07-28" if stateless else "legacy",
        log_level="info",
        sampling_callback=person.sample,
        elicitation_callback=person.elicit,
        list_roots_callback=person.roots,
        logging_callback=person.log,
        message_handler=person.message,
    )
    async with client, AsyncExitStack() as stack:
        actions = Actions(client, notebook, stack, stateless)
        report(await perform(chosen.script, actions, notebook))
        for listener in actions.listeners:
            listener.cancel()


if __name__ == "__main__":
    asyncio.run(main(options()))
