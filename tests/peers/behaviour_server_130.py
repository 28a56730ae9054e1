"""The behaviour server on `mcp` 1.30: 2025-11-25 only, with its experimental tasks, over HTTP or stdio.

Handlers are registered below the decorators of the SDK, because those turn every exception into an `isError` result
and would check arguments for us. `roots/list` goes out without a related request, as this SDK always sends it: on
HTTP it arrives on the standalone stream.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
import mcp.types as t
import uvicorn
from mcp.server.fastmcp.server import StreamableHTTPASGIApp
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import McpError
from starlette.applications import Starlette
from starlette.routing import Route


class ChangingServer(Server[Any, Any]):
    """Declares listChanged and subscribe, which this SDK never does by itself."""

    def get_capabilities(self, notification_options: Any, experimental_capabilities: Any) -> t.ServerCapabilities:
        output = super().get_capabilities(NotificationOptions(True, True, True), experimental_capabilities)
        if output.resources is not None:
            output.resources.subscribe = True
        return output


server = ChangingServer("behaviour-130", version="1.0.0")
subscribed: dict[str, list[Any]] = {}
NAME_FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def text(words: str, **extra: Any) -> t.CallToolResult:
    return t.CallToolResult(content=[t.TextContent(type="text", text=words)], **extra)


def session() -> Any:
    return server.request_context.session


def related() -> Any:
    return server.request_context.request_id


async def echo(arguments: dict[str, Any]) -> t.CallToolResult:
    return text(arguments["text"])


async def add(arguments: dict[str, Any]) -> t.CallToolResult:
    total = arguments["a"] + arguments["b"]
    return text(str(total), structuredContent={"sum": total})


async def slow(arguments: dict[str, Any]) -> t.CallToolResult:
    steps, meta = int(arguments["steps"]), server.request_context.meta
    for step in range(1, steps + 1):
        if meta is not None and meta.progressToken is not None:
            await session().send_progress_notification(meta.progressToken, step, steps, f"step {step}", str(related()))
        await asyncio.sleep(arguments["seconds"] / steps)
    return text(f"done after {steps} steps")


async def ask(arguments: dict[str, Any]) -> t.CallToolResult:
    answer = await session().elicit_form("What is your name?", NAME_FORM, related())
    return text(f"{answer.action}:{(answer.content or {}).get('name')}")


async def ask_twice(arguments: dict[str, Any]) -> t.CallToolResult:
    first = await session().elicit_form("What is the first name?", NAME_FORM, related())
    second = await session().elicit_form("What is the second name?", NAME_FORM, related())
    return text(f"{first.content['name']} and {second.content['name']}")


async def ask_url(arguments: dict[str, Any]) -> t.CallToolResult:
    answer = await session().elicit_url("Please sign in", "https://example.test/sign", "sign-1", related())
    return text(answer.action)


async def sample(arguments: dict[str, Any]) -> t.CallToolResult:
    message = t.SamplingMessage(role="user", content=t.TextContent(type="text", text="Say hello"))
    answer = await session().create_message([message], max_tokens=20, related_request_id=related())
    return text(f"the model said: {answer.content.text}")


async def roots(arguments: dict[str, Any]) -> t.CallToolResult:
    answer = await session().list_roots()
    return text(",".join(str(root.uri) for root in answer.roots))


async def log(arguments: dict[str, Any]) -> t.CallToolResult:
    for level, words in (("debug", "one"), ("info", "two"), ("error", "three")):
        await session().send_log_message(level, words, "peer", related())
    return text("logged")


async def fail(arguments: dict[str, Any]) -> t.CallToolResult:
    return text("it failed on purpose", isError=True)


async def crash(arguments: dict[str, Any]) -> t.CallToolResult:
    raise McpError(t.ErrorData(code=-32010, message="it crashed on purpose", data={"why": "test"}))


async def big(arguments: dict[str, Any]) -> t.CallToolResult:
    return text("x" * int(arguments["n"]))


async def vendor(arguments: dict[str, Any]) -> t.CallToolResult:
    return text("vendor", _meta={"example.com/mark": 7}, vendorField={"nested": [1, "two", None]})


async def update(arguments: dict[str, Any]) -> t.CallToolResult:
    for subscriber in list(subscribed.get("memo://watched", [])):
        try:
            await subscriber.send_resource_updated("memo://watched")
        except anyio.ClosedResourceError:
            subscribed["memo://watched"].remove(subscriber)
    return text("updated")


async def mutate(arguments: dict[str, Any]) -> t.CallToolResult:
    TOOLS[f"extra{len(TOOLS)}" if "extra" in TOOLS else "extra"] = (echo, words("text"))
    await session().send_tool_list_changed()
    return text("mutated")


async def work(arguments: dict[str, Any]) -> Any:
    """Runs as a task if requested, otherwise at once."""

    async def later(task: Any = None) -> t.CallToolResult:
        await asyncio.sleep(arguments["seconds"])
        return text("worked")

    return await run_maybe_as_task(later)


async def work_asking(arguments: dict[str, Any]) -> Any:
    async def later(task: Any = None) -> t.CallToolResult:
        if task is None:
            return await ask(arguments)
        answer = await task.elicit("What is your name?", NAME_FORM)
        return text(f"{answer.action}:{(answer.content or {}).get('name')}")

    return await run_maybe_as_task(later)


async def run_maybe_as_task(later: Any) -> Any:
    experimental = server.request_context.experimental
    return await experimental.run_task(later) if experimental.is_task else await later()


def words(*names: str, kind: str = "string") -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": kind} for name in names}, "required": list(names)}


NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "echo": (echo, words("text")),
    "add": (add, words("a", "b", kind="number")),
    "slow": (slow, words("seconds", "steps", kind="number")),
    "ask": (ask, NOTHING),
    "ask_twice": (ask_twice, NOTHING),
    "ask_url": (ask_url, NOTHING),
    "sample": (sample, NOTHING),
    "roots": (roots, NOTHING),
    "log": (log, NOTHING),
    "fail": (fail, NOTHING),
    "crash": (crash, NOTHING),
    "big": (big, words("n", kind="number")),
    "vendor": (vendor, NOTHING),
    "update": (update, NOTHING),
    "mutate": (mutate, NOTHING),
    "work": (work, words("seconds", kind="number")),
    "work_asking": (work_asking, NOTHING),
}


async def list_tools(request: t.ListToolsRequest) -> t.ServerResult:
    tools = [t.Tool(name=name, description=f"Behaviour {name}", inputSchema=sc) for name, (_, sc) in TOOLS.items()]
    tools[1].outputSchema = words("sum", kind="number")
    for tool in tools:
        if tool.name.startswith("work"):
            tool.execution = t.ToolExecution(taskSupport="optional")
    return t.ServerResult(t.ListToolsResult(tools=tools))


async def call_tool(request: t.CallToolRequest) -> t.ServerResult:
    if request.params.name not in TOOLS:
        raise McpError(t.ErrorData(code=t.INVALID_PARAMS, message=f"Unknown tool: {request.params.name}"))
    return t.ServerResult(await TOOLS[request.params.name][0](request.params.arguments or {}))


MEMOS = {"memo://plain": "plain memo", "memo://watched": "watched memo"}


async def list_resources(request: t.ListResourcesRequest) -> t.ServerResult:
    memos: Any = [{"uri": uri, "name": uri.removeprefix("memo://"), "mimeType": "text/plain"} for uri in MEMOS]
    return t.ServerResult(t.ListResourcesResult(resources=memos))


async def list_templates(request: t.ListResourceTemplatesRequest) -> t.ServerResult:
    template = t.ResourceTemplate(uriTemplate="memo://notes/{name}", name="notes")
    return t.ServerResult(t.ListResourceTemplatesResult(resourceTemplates=[template]))


async def read_resource(request: t.ReadResourceRequest) -> t.ServerResult:
    uri = str(request.params.uri)
    found = f"note {uri.removeprefix('memo://notes/')}" if uri.startswith("memo://notes/") else MEMOS.get(uri)
    if found is None:
        raise McpError(t.ErrorData(code=-32002, message="Resource not found", data={"uri": uri}))
    content: Any = {"uri": uri, "mimeType": "text/plain", "text": found}
    return t.ServerResult(t.ReadResourceResult(contents=[content]))


async def subscribe(request: t.SubscribeRequest) -> t.ServerResult:
    subscribed.setdefault(str(request.params.uri), []).append(session())
    return t.ServerResult(t.EmptyResult())


async def unsubscribe(request: t.UnsubscribeRequest) -> t.ServerResult:
    subscribed.pop(str(request.params.uri), None)
    return t.ServerResult(t.EmptyResult())


async def list_prompts(request: t.ListPromptsRequest) -> t.ServerResult:
    letter = t.Prompt(name="letter", description="A letter", arguments=[t.PromptArgument(name="to", required=True)])
    return t.ServerResult(t.ListPromptsResult(prompts=[t.Prompt(name="greeting", description="A greeting"), letter]))


async def get_prompt(request: t.GetPromptRequest) -> t.ServerResult:
    if request.params.name not in {"greeting", "letter"}:
        raise McpError(t.ErrorData(code=t.INVALID_PARAMS, message=f"Unknown prompt: {request.params.name}"))
    greeting = request.params.name == "greeting"
    line = "Good day" if greeting else f"Dear {(request.params.arguments or {})['to']}"
    message = t.PromptMessage(role="user", content=t.TextContent(type="text", text=line))
    return t.ServerResult(t.GetPromptResult(messages=[message]))


async def complete(request: t.CompleteRequest) -> t.ServerResult:
    values = [name for name in ("Ann", "Anton", "Bob") if name.startswith(request.params.argument.value)]
    return t.ServerResult(t.CompleteResult(completion=t.Completion(values=values, total=len(values), hasMore=False)))


async def acknowledge(request: t.SetLevelRequest) -> t.ServerResult:
    return t.ServerResult(t.EmptyResult())


server.request_handlers |= {
    t.ListToolsRequest: list_tools,
    t.CallToolRequest: call_tool,
    t.ListResourcesRequest: list_resources,
    t.ListResourceTemplatesRequest: list_templates,
    t.ReadResourceRequest: read_resource,
    t.SubscribeRequest: subscribe,
    t.UnsubscribeRequest: unsubscribe,
    t.ListPromptsRequest: list_prompts,
    t.GetPromptRequest: get_prompt,
    t.CompleteRequest: complete,
    t.SetLevelRequest: acknowledge,
}
server.experimental.enable_tasks()


def serve_http(port: int) -> None:
    manager = StreamableHTTPSessionManager(app=server)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    app = Starlette(routes=[Route("/mcp", endpoint=StreamableHTTPASGIApp(manager))], lifespan=lifespan)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1)


async def serve_stdio() -> None:
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT")
    parser.add_argument("--stdio", action="store_true")
    options = parser.parse_args()
    serve_http(options.http) if options.http else asyncio.run(serve_stdio())
