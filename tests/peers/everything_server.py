"""A server with every name the official conformance suite calls, on `mcp` 2.3, in both generations, over HTTP or stdio.

The contents are fixed by the suite; what matters to us is that the same program passes directly and behind Taskgate.
The questions of 2026-07-28 are in `everything_inputs`, its tasks in `everything_tasks`. Started by the conformance
tests.

    python everything_server.py --http 9100
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from everything_inputs import INPUT_PROMPT, INPUT_TOOLS
from everything_tasks import TASK_TOOLS, TaskBoard
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
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

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFAAH/q842iQAAAABJRU5ErkJggg=="
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
NOTHING: Wire = {"type": "object", "properties": {}}
bus = InMemorySubscriptionBus()


def fixed(*content: Wire, **extra: Any) -> Tool:
    async def answer(call: Call) -> Wire:
        return {"content": list(content), **extra}

    return answer


def embedded(uri: str, mime: str, words: str) -> Wire:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": words}}


def words(words: str) -> Wire:
    return {"type": "text", "text": words}


async def with_logging(call: Call) -> Wire:
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await call.log("info", line)
        await asyncio.sleep(0.05)
    return text("logged three lines")


async def with_progress(call: Call) -> Wire:
    for done in (0, 50, 100):
        await call.progress(done, 100)
        await asyncio.sleep(0.05)
    return text("reported progress three times")


async def with_sampling(call: Call) -> Wire:
    message = {"role": "user", "content": words(call.arguments["prompt"])}
    answer = await call.ask("sampling/createMessage", {"messages": [message], "maxTokens": 100})
    return text(f"LLM response: {answer['content'].get('text', '')}")


async def elicit(call: Call, message: str, properties: Wire, required: tuple[str, ...] = ()) -> Wire:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    answer = await call.ask("elicitation/create", {"message": message, "requestedSchema": schema})
    return text(f"User response: action={answer['action']}, content={json.dumps(answer.get('content', {}))}")


async def with_elicitation(call: Call) -> Wire:
    fields = {name: {"type": "string", "description": f"The user's {name}"} for name in ("username", "email")}
    return await elicit(call, call.arguments["message"], fields, ("username", "email"))


async def with_defaults(call: Call) -> Wire:
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return await elicit(call, "Please check the defaults", fields)


async def with_enums(call: Call) -> Wire:
    options = ["option1", "option2", "option3"]
    titled = [{"const": f"value{n}", "title": f"{name} choice"} for n, name in ((1, "First"), (2, "Second"))]
    legacy = {"enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]}
    fields = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string"} | legacy,
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return await elicit(call, "Please choose", fields)


async def reconnecting(call: Call) -> Wire:
    """Close the stream in the middle of the call; the client resumes it with Last-Event-ID for the result."""
    if call.context.close_sse_stream is not None:
        await call.context.close_sse_stream()
    await asyncio.sleep(0.3)
    return text("answered after the stream was closed")


async def change_tools(call: Call) -> Wire:
    """Add a tool, or take it away again: a list that is announced as changed has changed."""
    if TOOLS.pop("test_dynamic_tool", None) is None:
        TOOLS["test_dynamic_tool"] = (fixed(words("dynamic")), NOTHING)
    await bus.publish(ToolsListChanged())
    if not call.stateless:
        await call.context.session.send_tool_list_changed()
    return text("announced")


async def change_prompts(call: Call) -> Wire:
    if PROMPTS.pop("test_dynamic_prompt", None) is None:
        PROMPTS["test_dynamic_prompt"] = ()
    await bus.publish(PromptsListChanged())
    if not call.stateless:
        await call.context.session.send_prompt_list_changed()
    return text("announced")


async def update_watched(call: Call) -> Wire:
    await bus.publish(ResourceUpdated(uri="test://watched-resource"))
    return text("announced")


def schema(**properties: str) -> Wire:
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }


WIDE_SCHEMA: Wire = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
HEADER_SCHEMA: Wire = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    "required": ["region"],
}
MIXED = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
TOOLS: dict[str, tuple[Tool, Wire]] = {
    "test_simple_text": (fixed(words("This is a simple text response for testing.")), NOTHING),
    "test_image_content": (fixed(IMAGE), NOTHING),
    "test_audio_content": (fixed({"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}), NOTHING),
    "test_embedded_resource": (
        fixed(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")),
        NOTHING,
    ),
    "test_multiple_content_types": (fixed(words("Multiple content types test:"), IMAGE, MIXED), NOTHING),
    "test_error_handling": (
        fixed(words("This tool intentionally returns an error for testing"), isError=True),
        NOTHING,
    ),
    "test_tool_with_logging": (with_logging, NOTHING),
    "test_tool_with_progress": (with_progress, NOTHING),
    "test_sampling": (with_sampling, schema(prompt="string")),
    "test_elicitation": (with_elicitation, schema(message="string")),
    "test_elicitation_sep1034_defaults": (with_defaults, NOTHING),
    "test_elicitation_sep1330_enums": (with_enums, NOTHING),
    "test_reconnection": (reconnecting, NOTHING),
    "test_trigger_tool_change": (change_tools, NOTHING),
    "test_trigger_prompt_change": (change_prompts, NOTHING),
    "test_trigger_resource_update": (update_watched, NOTHING),
    "test_logging_tool": (with_logging, NOTHING),
    "json_schema_2020_12_tool": (fixed(words("accepted")), WIDE_SCHEMA),
    "test_header_tool": (fixed(words("routed")), HEADER_SCHEMA),
    **INPUT_TOOLS,
    **TASK_TOOLS,
}


async def list_tools(context: Any, params: Any) -> Wire:
    tools = [
        {"name": name, "description": f"Conformance fixture {name}", "inputSchema": schema}
        for name, (_, schema) in TOOLS.items()
    ]
    return {"tools": tools, **NEVER_STALE}


board = TaskBoard()


async def call_tool(context: Any, params: Any) -> Wire:
    if params.name not in TOOLS:
        raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name}")
    return await run_tool(board.offering(params.name, TOOLS[params.name][0]), context)


RESOURCES: dict[str, tuple[str, Wire]] = {
    "test://static-text": ("text/plain", {"text": "This is the content of the static text resource."}),
    "test://static-binary": ("image/png", {"blob": PIXEL}),
    "test://watched-resource": ("text/plain", {"text": "Watched resource content."}),
}


async def list_resources(context: Any, params: Any) -> Wire:
    resources = [
        {"uri": uri, "name": uri.removeprefix("test://"), "description": f"Fixture {uri}", "mimeType": mime}
        for uri, (mime, _) in RESOURCES.items()
    ]
    return {"resources": resources, **NEVER_STALE}


async def list_templates(context: Any, params: Any) -> Wire:
    template = {"uriTemplate": "test://template/{id}/data", "name": "template", "mimeType": "application/json"}
    return {"resourceTemplates": [template | {"description": "Fixture template"}], **NEVER_STALE}


async def read_resource(context: Any, params: Any) -> Wire:
    uri = str(params.uri)
    if uri.startswith("test://template/") and uri.endswith("/data"):
        number = uri.removeprefix("test://template/").removesuffix("/data")
        body = json.dumps({"id": number, "templateTest": True, "data": f"Data for ID: {number}"})
        return {"contents": [{"uri": uri, "mimeType": "application/json", "text": body}], **NEVER_STALE}
    if uri not in RESOURCES:
        raise MCPError(INVALID_PARAMS, "Resource not found", {"uri": uri})
    mime, body_of = RESOURCES[uri]
    return {"contents": [{"uri": uri, "mimeType": mime, **body_of}], **NEVER_STALE}


PROMPTS: dict[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}


async def list_prompts(context: Any, params: Any) -> Wire:
    prompts = [
        {
            "name": name,
            "description": f"Fixture {name}",
            "arguments": [{"name": argument, "required": True} for argument in arguments],
        }
        for name, arguments in PROMPTS.items()
    ]
    return {"prompts": prompts, **NEVER_STALE}


async def get_prompt(context: Any, params: Any) -> Wire:
    given = params.arguments or {}
    match params.name:
        case "test_simple_prompt":
            contents = [words("This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            contents = [words(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")]
        case "test_prompt_with_embedded_resource":
            resource = embedded(given["resourceUri"], "text/plain", "Embedded resource content for testing.")
            contents = [resource, words("Please process the embedded resource above.")]
        case "test_prompt_with_image":
            contents = [IMAGE, words("Please analyze the image above.")]
        case "test_input_required_result_prompt":
            return await run_tool(INPUT_PROMPT, context)
        case unknown:
            raise MCPError(INVALID_PARAMS, f"Unknown prompt: {unknown}")
    return {"messages": [{"role": "user", "content": content} for content in contents]}


async def complete(context: Any, params: Any) -> Wire:
    cities = ["paris", "park", "party", "test-value"]
    values = [city for city in cities if city.startswith(params.argument.value)]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}


async def acknowledge(context: Any, params: Any) -> EmptyResult:
    return EmptyResult()


def build(with_tasks: bool) -> ChangingServer:
    handlers = {
        "on_list_tools": list_tools,
        "on_call_tool": call_tool,
        "on_list_resources": list_resources,
        "on_list_resource_templates": list_templates,
        "on_read_resource": read_resource,
        "on_subscribe_resource": acknowledge,
        "on_unsubscribe_resource": acknowledge,
        "on_subscriptions_listen": ListenHandler(bus),
        "on_list_prompts": list_prompts,
        "on_get_prompt": get_prompt,
        "on_completion": complete,
        "on_set_logging_level": acknowledge,
    }
    wrapped: dict[str, Any] = {name: completing(handler) for name, handler in handlers.items()}
    server = ChangingServer("everything", version="1.0.0", **wrapped)
    if with_tasks:
        board.register(server)
    return server


if __name__ == "__main__":
    chosen = options()
    board.open = not chosen.without_tasks
    serve(build(board.open), chosen, resumable=True)
