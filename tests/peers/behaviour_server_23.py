"""The behaviour server on `mcp` 2.3: both generations, HTTP or stdio.

It offers the same small set of tools, resources and prompts as the other three (`behaviour_server_130.py`,
`behaviour_server_ts1.mjs`, `behaviour_server_ts2.mjs`); what a client must see is written in
`tests/conversations/behaviours.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import EmptyResult
from server_base_23 import (
    INVALID_PARAMS,
    NEVER_STALE,
    Call,
    ChangingServer,
    Tool,
    Wire,
    completing,
    options,
    run_tool,
    serve,
    text,
)

bus = InMemorySubscriptionBus()
subscribed: dict[str, list[Any]] = {}


async def echo(call: Call) -> Wire:
    return text(call.arguments["text"])


async def add(call: Call) -> Wire:
    total = call.arguments["a"] + call.arguments["b"]
    return text(str(total), structuredContent={"sum": total})


async def slow(call: Call) -> Wire:
    steps = int(call.arguments["steps"])
    for step in range(1, steps + 1):
        await call.progress(step, steps, f"step {step}")
        await asyncio.sleep(call.arguments["seconds"] / steps)
    return text(f"done after {steps} steps")


async def ask_name(call: Call, message: str) -> Wire:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return await call.ask("elicitation/create", {"mode": "form", "message": message, "requestedSchema": schema})


async def ask(call: Call) -> Wire:
    answer = await ask_name(call, "What is your name?")
    return text(f"{answer['action']}:{(answer.get('content') or {}).get('name')}")


async def ask_twice(call: Call) -> Wire:
    first = await ask_name(call, "What is the first name?")
    second = await ask_name(call, "What is the second name?")
    return text(f"{first['content']['name']} and {second['content']['name']}")


async def ask_url(call: Call) -> Wire:
    params = {"mode": "url", "message": "Please sign in", "url": "https://example.test/sign"}
    if not call.stateless:
        params["elicitationId"] = "sign-1"
    answer = await call.ask("elicitation/create", params)
    return text(answer["action"])


async def sample(call: Call) -> Wire:
    message = {"role": "user", "content": {"type": "text", "text": "Say hello"}}
    answer = await call.ask("sampling/createMessage", {"messages": [message], "maxTokens": 20})
    return text(f"the model said: {answer['content']['text']}")


async def roots(call: Call) -> Wire:
    answer = await call.ask("roots/list", {})
    return text(",".join(root["uri"] for root in answer["roots"]))


async def log(call: Call) -> Wire:
    for level, words in (("debug", "one"), ("info", "two"), ("error", "three")):
        await call.log(level, words)
    return text("logged")


async def fail(call: Call) -> Wire:
    return text("it failed on purpose", isError=True)


async def crash(call: Call) -> Wire:
    raise MCPError(-32010, "it crashed on purpose", {"why": "test"})


async def big(call: Call) -> Wire:
    return text("x" * int(call.arguments["n"]))


async def update(call: Call) -> Wire:
    await bus.publish(ResourceUpdated(uri="memo://watched"))
    for session in subscribed.get("memo://watched", []):
        await session.send_resource_updated("memo://watched")
    return text("updated")


async def mutate(call: Call) -> Wire:
    TOOLS[f"extra{len(TOOLS)}" if "extra" in TOOLS else "extra"] = (echo, words("text"))
    await bus.publish(ToolsListChanged())
    if not call.stateless:
        await call.context.session.send_tool_list_changed()
    return text("mutated")


async def work(call: Call) -> Wire:
    await asyncio.sleep(call.arguments["seconds"])
    return text("worked")


def words(*names: str, kind: str = "string") -> Wire:
    return {"type": "object", "properties": {name: {"type": kind} for name in names}, "required": list(names)}


NOTHING: Wire = {"type": "object", "properties": {}}
TOOLS: dict[str, tuple[Tool, Wire]] = {
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
    "vendor": (echo, NOTHING),
    "update": (update, NOTHING),
    "mutate": (mutate, NOTHING),
    "work": (work, words("seconds", kind="number")),
    "work_asking": (ask, NOTHING),
}


async def list_tools(context: Any, params: Any) -> Wire:
    tools = [{"name": name, "description": f"Behaviour {name}", "inputSchema": sc} for name, (_, sc) in TOOLS.items()]
    tools[1]["outputSchema"] = words("sum", kind="number")
    return {"tools": tools, **NEVER_STALE}


async def call_tool(context: Any, params: Any) -> Wire:
    if params.name not in TOOLS:
        raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name}")
    return await run_tool(TOOLS[params.name][0], context)


async def vendor_fields(context: Any, call_next: Any) -> Any:
    """Answer the `vendor` tool around the SDK, which would drop unknown fields."""
    if context.method == "tools/call" and dict(context.params or {}).get("name") == "vendor":
        mark = {"_meta": {"example.com/mark": 7}, "vendorField": {"nested": [1, "two", None]}}
        stateless = {"resultType": "complete"} if context.protocol_version == "2026-07-28" else {}
        return text("vendor", **mark, **stateless)
    return await call_next(context)


MEMOS = {"memo://plain": "plain memo", "memo://watched": "watched memo"}


async def list_resources(context: Any, params: Any) -> Wire:
    memos = [{"uri": uri, "name": uri.removeprefix("memo://"), "mimeType": "text/plain"} for uri in MEMOS]
    return {"resources": memos, **NEVER_STALE}


async def list_templates(context: Any, params: Any) -> Wire:
    return {"resourceTemplates": [{"uriTemplate": "memo://notes/{name}", "name": "notes"}], **NEVER_STALE}


async def read_resource(context: Any, params: Any) -> Wire:
    uri = str(params.uri)
    found = f"note {uri.removeprefix('memo://notes/')}" if uri.startswith("memo://notes/") else MEMOS.get(uri)
    if found is None:
        raise MCPError(INVALID_PARAMS, "Resource not found", {"uri": uri})
    return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": found}], **NEVER_STALE}


async def subscribe(context: Any, params: Any) -> EmptyResult:
    subscribed.setdefault(str(params.uri), []).append(context.session)
    return EmptyResult()


async def unsubscribe(context: Any, params: Any) -> EmptyResult:
    subscribed.pop(str(params.uri), None)
    return EmptyResult()


async def list_prompts(context: Any, params: Any) -> Wire:
    letter = {"name": "letter", "description": "A letter", "arguments": [{"name": "to", "required": True}]}
    return {"prompts": [{"name": "greeting", "description": "A greeting"}, letter], **NEVER_STALE}


async def get_prompt(context: Any, params: Any) -> Wire:
    if params.name not in {"greeting", "letter"}:
        raise MCPError(INVALID_PARAMS, f"Unknown prompt: {params.name}")
    line = "Good day" if params.name == "greeting" else f"Dear {(params.arguments or {})['to']}"
    return {"messages": [{"role": "user", "content": {"type": "text", "text": line}}]}


async def complete(context: Any, params: Any) -> Wire:
    values = [name for name in ("Ann", "Anton", "Bob") if name.startswith(params.argument.value)]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}


async def acknowledge(context: Any, params: Any) -> EmptyResult:
    return EmptyResult()


def build() -> ChangingServer:
    handlers = {
        "on_list_tools": list_tools,
        "on_call_tool": call_tool,
        "on_list_resources": list_resources,
        "on_list_resource_templates": list_templates,
        "on_read_resource": read_resource,
        "on_subscribe_resource": subscribe,
        "on_unsubscribe_resource": unsubscribe,
        "on_subscriptions_listen": ListenHandler(bus),
        "on_list_prompts": list_prompts,
        "on_get_prompt": get_prompt,
        "on_completion": complete,
        "on_set_logging_level": acknowledge,
    }
    wrapped: dict[str, Any] = {name: completing(handler) for name, handler in handlers.items()}
    server = ChangingServer("behaviour-23", version="1.0.0", **wrapped)
    server.middleware.append(vendor_fields)
    return server


if __name__ == "__main__":
    serve(build(), options())
