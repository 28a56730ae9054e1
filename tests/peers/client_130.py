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
from script import ROOT, SPOKEN, Notebook, options, perform, report

warnings.filterwarnings("ignore")


def dump(result: Any) -> Any:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


class Actions:
    """One method per operation of a script."""

    def __init__(self, session: ClientSession, notebook: Notebook) -> None:
        self.session, self.notebook = session, notebook

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self.session.list_tools()).tools]

    async def resources(self) -> list[str]:
        return [str(resource.uri) for resource in (await self.session.list_resources()).resources]

    async def templates(self) -> list[str]:
        return [kind.uriTemplate for kind in (await self.session.list_resource_templates()).resourceTemplates]

    async def prompts(self) -> list[str]:
        return [prompt.name for prompt in (await self.session.list_prompts()).prompts]

    async def call(self, name: str, arguments: dict[str, Any], progress: bool = False) -> Any:
        async def note(done: float, total: float | None, message: str | None) -> None:
            self.notebook.progress.append([done, total, message])

        return dump(await self.session.call_tool(name, arguments, progress_callback=note if progress else None))

    async def read(self, uri: str) -> Any:
        return dump(await self.session.read_resource(AnyUrl(uri)))

    async def prompt(self, name: str, arguments: dict[str, str]) -> Any:
        return dump(await self.session.get_prompt(name, arguments))

    async def complete(self, prompt: str, argument: str, value: str) -> Any:
        reference = t.PromptReference(type="ref/prompt", name=prompt)
        return dump(await self.session.complete(reference, {"name": argument, "value": value}))

    async def level(self, level: Any) -> Any:
        return dump(await self.session.set_logging_level(level))

    async def watch(self, uri: str) -> Any:
        return dump(await self.session.subscribe_resource(AnyUrl(uri)))

    async def unwatch(self, uri: str) -> Any:
        return dump(await self.session.unsubscribe_resource(AnyUrl(uri)))

    async def notice(self, method: str) -> str:
        return await self.notebook.wait_for(method)

    async def ping(self) -> Any:
        return dump(await self.session.send_ping())

    async def task(self, name: str, arguments: dict[str, Any], cancel: bool = False) -> Any:
        """Run a tool as a task: create, read the result while it works, and look at the state in the end."""
        experimental = self.session.experimental
        created = await experimental.call_tool_as_task(name, arguments, ttl=60_000)
        task_id = created.task.taskId
        if cancel:
            return {"status": (await experimental.cancel_task(task_id)).status}
        result = await experimental.get_task_result(task_id, t.CallToolResult)
        listed = task_id in [task.taskId for task in (await experimental.list_tasks()).tasks]
        return {"status": (await experimental.get_task(task_id)).status, "result": dump(result), "listed": listed}


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
        if isinstance(message, t.ServerNotification):
            self.notebook.notice(message.root.method)


async def main(chosen: argparse.Namespace) -> None:
    notebook = Notebook()
    person = Person(notebook)
    async with AsyncExitStack() as stack:
        if chosen.url:
            reader, writer, _ = await stack.enter_async_context(streamable_http_client(chosen.url))
        else:
            server = StdioServerParameters(command=chosen.command[0], args=chosen.command[1:])
            reader, writer = await stack.enter_async_context(stdio_client(server))
        session = ClientSession(
            reader,
            writer,
            sampling_callback=person.sample,
            elicitation_callback=person.elicit,
            list_roots_callback=person.roots,
            logging_callback=person.log,
            message_handler=person.message,
        )
        await stack.enter_async_context(session)
        await session.initialize()
        report(await perform(chosen.script, Actions(session, notebook), notebook))


if __name__ == "__main__":
    asyncio.run(main(options()))
