"""Sends a server every request of its entry in the catalog, directly and through a gateway, and reports differences."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.harness.gateway import Gateway, running_gateway
from tests.servers.catalog import Server

if TYPE_CHECKING:
    from mcp.client.client import Client
    from mcp_types import ErrorData

# The SDK takes a second to load, and every worker of a test run loads this module: functions import it.
Wire = dict[str, Any]
TIMEOUT = 60.0
MOMENTS = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?([+-]\d\d:\d\d|Z)?|\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d+Z|\d+:\d\d:\d\d\s[AP]M"
)
NO_SUCH_METHOD = "-32601"
CAPABILITY = "capability "
SHARED = ("tools", "prompts", "resources", "completions", "logging")
"""What a server's capabilities must still have through a gateway, which has all of them by itself."""
PAGE = b"<html><head><title>Loopback</title></head><body><h1>Hello</h1><p>A page on this machine.</p></body></html>"


async def differences(server: Server) -> tuple[int, dict[str, str]]:
    """The number of requests, and both replies for each request with different ones."""
    async with a_web_page() as web:
        with tempfile.TemporaryDirectory(prefix="server-") as one, tempfile.TemporaryDirectory(prefix="server-") as two:
            direct = await asked_directly(server, Path(one), web)
            through = await asked_through(server, Path(two), web)
    more = [name for name in through if name.startswith(CAPABILITY) and name not in direct]
    both = {name: (direct.get(name), through.get(name)) for name in {**direct, **through} if name not in more}
    found = {name: f"directly {short(a)}, through {short(b)}" for name, (a, b) in both.items() if a != b}
    return len(both), found


def short(answer: Any) -> str:
    return json.dumps(answer, ensure_ascii=False)[:400]


async def asked_directly(server: Server, folder: Path, web: str) -> Wire:
    from mcp.client.stdio import StdioServerParameters

    fill = prepared(server, folder, web)
    program, *words = map(fill, server.command)
    environment = {name: fill(value) for name, value in server.environment}
    return await asked(server, StdioServerParameters(command=program, args=words, env=environment), fill, folder, web)


async def asked_through(server: Server, folder: Path, web: str) -> Wire:
    """Nothing here may become a task: then output schemas are listed as the server has them."""
    fill = prepared(server, folder, web)
    program, *words = map(fill, server.command)
    entry = {"command": program, "args": words, "env": {name: fill(value) for name, value in server.environment}}
    config = {
        "schema": 1,
        "servers": {server.name: entry},
        "scopes": {"default": {"default_servers": ["*"], "names": "plain", "helper_tools": "never"}},
        "tasks": {"promote_after_ms": 0},
    }
    async with running_gateway(config) as gateway:
        await listed(gateway)
        return await asked(server, gateway.url, fill, folder, web)


async def listed(gateway: Gateway) -> None:
    """Some programs install things when they are first started; who lists before that is answered without them."""
    async with asyncio.timeout(TIMEOUT):
        while "server listed" not in gateway.log:
            await asyncio.sleep(0.1)


class Filling:
    """Puts the folder and the page into a text."""

    def __init__(self, folder: Path, web: str) -> None:
        self.folder, self.web = str(folder), web

    def __call__(self, text: str) -> str:
        return text.replace("{folder}", self.folder).replace("{web}", self.web)


def prepared(server: Server, folder: Path, web: str) -> Filling:
    server.prepare(folder)
    return Filling(folder, web)


async def refuse(*_: Any) -> ErrorData:
    """The client declares elicitation, because servers list more tools to such clients; no request here causes one."""
    from mcp_types import ErrorData

    return ErrorData(code=-1, message="not here")


async def asked(server: Server, target: Any, fill: Filling, folder: Path, web: str) -> Wire:
    """Every reply by its request; folders and times are normalized in both."""
    from mcp.client.client import Client

    answers: Wire = {}
    able: Any = {"elicitation_callback": refuse, "sampling_callback": refuse, "list_roots_callback": refuse}
    async with Client(target, mode="legacy", **able) as client:

        async def ask(name: str, answer: Awaitable[Any]) -> None:
            try:
                found: Any = (await asyncio.wait_for(answer, TIMEOUT)).model_dump(
                    mode="json", by_alias=True, exclude_none=True
                )
            except Exception as error:
                found = {"error": f"{getattr(error, 'code', '')} {error}"}
            answers[name] = alike(found, folder)

        offered = client.server_capabilities.model_dump(mode="json", by_alias=True, exclude_none=True)
        answers |= {f"{CAPABILITY}{name}": True for name in offered if name in SHARED}
        for name, listed in lists_of(client).items():
            await ask(name, listed)
        for number, (tool, arguments) in enumerate(server.calls, start=1):
            await ask(f"{number} {tool} {json.dumps(arguments)}", client.call_tool(tool, filled(arguments, fill)))
        for prompt, arguments in server.prompts:
            await ask(f"prompt {prompt} {json.dumps(arguments)}", client.get_prompt(prompt, filled(arguments, fill)))
        for uri in server.resources:
            await ask(f"read {uri}", client.read_resource(uri))
    return answers


def filled(arguments: Wire, fill: Filling) -> Wire:
    filled_in: Wire = json.loads(fill(json.dumps(arguments)))
    return filled_in


def lists_of(client: Client) -> dict[str, Awaitable[Any]]:
    return {
        "tools/list": client.list_tools(),
        "prompts/list": client.list_prompts(),
        "resources/list": client.list_resources(),
        "resources/templates/list": client.list_resource_templates(),
    }


def alike(answer: Any, folder: Path) -> Any:
    """Without what may differ: folders, moments, whether a tool may run as a task (that is the gateway's own), and how a
    server reports that it has none of a kind: by an error, where a gateway has an empty list."""
    for tool in answer.get("tools", ()):
        tool.pop("execution", None)
    kinds = [answer.get(kind) for kind in ("prompts", "resources", "resourceTemplates")]
    if [] in kinds or NO_SUCH_METHOD in str(answer.get("error")):
        return "none"
    text = (
        json.dumps(answer, sort_keys=True, ensure_ascii=False)
        .replace(str(folder), "{folder}")
        .replace(folder.name, "{folder-name}")
    )
    return json.loads(MOMENTS.sub("{moment}", text))


@asynccontextmanager
async def a_web_page() -> AsyncIterator[str]:
    """A page on loopback; everything but `/` is missing."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
        status, body = (b"200 OK", PAGE) if request == b"/" else (b"404 Not Found", b"missing")
        head = b"HTTP/1.1 " + status + b"\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: "
        writer.write(head + str(len(body)).encode() + b"\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
