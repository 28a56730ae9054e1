"""The program the official suite's client scenarios drive: our client library, with the server's URL as argument.

The suite names the scenario in MCP_CONFORMANCE_SCENARIO. Most scenarios only need a client that connects, lists the tools and
calls them; the program does that for every server it meets, with arguments made from
each tool's schema, and reads prompts and resources where there are any. It is no test by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any
from urllib.parse import urlsplit

from taskgate.client import ClientError, Session, Tool, accept, connect
from taskgate.client.oauth import OAuth

SAMPLES = {"string": "text", "integer": 3, "number": 2, "boolean": True, "array": [], "object": {}, "null": None}


def arguments_for(tool: Tool, tools: list[Tool]) -> dict[str, Any]:
    properties = tool.input_schema.get("properties") or {}
    if "schema" in properties:  # this tool expects the other tool's schema as we received it
        return {"schema": next(other.input_schema for other in tools if other is not tool)}
    return {name: sample(prop) for name, prop in properties.items()}


def sample(prop: Any) -> Any:
    if not isinstance(prop, dict):
        return "text"
    for key in ("default", "const"):
        if key in prop:
            return prop[key]
    if prop.get("enum"):
        return prop["enum"][0]
    kind = prop.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: sample(inner) for name, inner in (prop.get("properties") or {}).items()}
    return SAMPLES.get(str(kind), "text")


async def exercise(session: Session, calls: list[dict[str, Any]]) -> None:
    """Use what the server offers; an error of one thing does not stop the next."""
    tools = await session.list_tools()
    wanted = calls or [{"name": tool.name, "arguments": arguments_for(tool, tools)} for tool in tools]
    for call in wanted:
        await attempt(session.call_tool(call["name"], call.get("arguments") or {}))
    capabilities = session.server_capabilities
    if "resources" in capabilities:
        for resource in await session.list_resources():
            await attempt(session.read_resource(str(resource.uri)))
    if "prompts" in capabilities:
        for prompt in await session.list_prompts():
            names = [argument["name"] for argument in prompt.raw.get("arguments") or []]
            await attempt(session.get_prompt(prompt.name, dict.fromkeys(names, "text") or None))


async def attempt(work: Any) -> None:
    try:
        print(await work)
    except ClientError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)


async def visit(address: str) -> str:
    """The suite's authorization servers approve at once: follow their redirect."""
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(
        f"GET {parts.path}?{parts.query} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n\r\n".encode()
    )
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120)).decode("latin-1")
    writer.close()
    return next(line[9:].strip() for line in head.split("\r\n") if line.lower().startswith("location:"))


async def main(url: str) -> None:
    version = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    generation = None if not version else "stateless" if version >= "2026" else "stateful"
    settings: dict[str, Any] = {
        "roots": ["file:///tmp"],
        "sampling": lambda question: "hello",
        "elicitation": lambda question: accept({}),
        "call_timeout": 20.0,
    }
    settings["auth"] = OAuth(
        visit,
        "http://localhost:3000/callback",
        metadata_url="https://conformance-test.local/client-metadata.json",
        client_id=context.get("client_id"),
        client_secret=context.get("client_secret"),
    )
    async with connect(url, generation=generation, **settings) as session:
        await exercise(session, context.get("toolCalls") or [])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
