"""The client under test of the official client scenarios: a gateway before the suite's server, and a caller that uses it all.

    python -m tests.conformance.drive_gateway SERVER_URL

The suite starts this program, or one that asks the test to run `main`, and watches what reaches its server, so Taskgate is
tested as a client. The caller lists everything, reads, fills and calls it, with the arguments that the scenario names in its
context or with values that fit the schema.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from tests.harness.gateway import running_gateway
from tests.harness.wire import STATELESS, caller

Wire = dict[str, Any]
SAMPLES = {"number": 1, "integer": 1, "boolean": True, "array": [], "object": {}, "string": "text"}
CAPABILITIES: Wire = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}


def answer(method: str, params: Wire) -> Wire:
    if method == "elicitation/create":
        fields = (params.get("requestedSchema") or {}).get("properties") or {}
        content = {name: one.get("default", SAMPLES.get(one.get("type"), "text")) for name, one in fields.items()}
        return {"action": "accept", "content": content}
    if method == "roots/list":
        return {"roots": [{"uri": "file:///tmp"}]}
    return {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "none"}


def sample(schema: Any) -> Wire:
    """Arguments that satisfy the required properties of a schema."""
    properties = schema.get("properties") or {}
    return {
        name: SAMPLES.get(str((properties.get(name) or {}).get("type")), "text")
        for name in schema.get("required") or ()
    }


async def use_everything(gateway: Any, environment: Mapping[str, str]) -> None:
    tools = await gateway.list_tools()
    wanted = json.loads(environment.get("MCP_CONFORMANCE_CONTEXT") or "{}").get("toolCalls")
    for call in wanted or [{"name": tool["name"], "arguments": arguments_for(tool, tools)} for tool in tools]:
        await gateway.request("tools/call", **call)
    for resource in (await gateway.request("resources/list")).last.get("result", {}).get("resources", []):
        await gateway.request("resources/read", uri=resource["uri"])
    for prompt in (await gateway.request("prompts/list")).last.get("result", {}).get("prompts", []):
        await gateway.request("prompts/get", name=prompt["name"], arguments={})


def arguments_for(tool: Wire, tools: list[Wire]) -> Wire:
    """A tool that takes a schema gets the longest one, as it was listed."""
    schema = tool["inputSchema"]
    if "schema" in (schema.get("properties") or {}):
        return {"schema": max((one["inputSchema"] for one in tools), key=lambda found: len(json.dumps(found)))}
    return sample(schema)


async def main(url: str, environment: Mapping[str, str]) -> None:
    stateless = environment.get("MCP_CONFORMANCE_PROTOCOL_VERSION") == STATELESS
    config = {
        "schema": 1,
        "servers": {"suite": {"url": url}},
        "scopes": {"default": {"default_servers": ["*"], "names": "plain", "helper_tools": "never"}},
        "tasks": {"promote_after_ms": 5000},
    }
    async with (
        running_gateway(config) as gateway,
        caller(gateway.url, stateless=stateless, capabilities=CAPABILITIES, answer=answer) as one,
    ):
        await use_everything(one, environment)
        # What the suite wanted to see has happened; a server that never finishes a call must not hold us up.
        await gateway.kill()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1], os.environ))
