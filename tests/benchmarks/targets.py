"""What the benchmark drives: the echo server itself, Taskgate, and other relays in their own environments.

Every target is a context manager that yields the address for the load and the process to measure. Each has its own echo
server, started here.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.contextforge import TOOL_PREFIX, running_contextforge
from tests.harness.absent import HOME
from tests.harness.gateway import running_gateway
from tests.harness.programs import free_port, listening, running

HERE = Path(__file__).resolve().parent
ECHO = HERE / "echo_server.py"


@dataclass(frozen=True, slots=True)
class Target:
    """A running relay: its address, the tool's name there, and its process (None for the echo server itself)."""

    name: str
    url: str
    pid: int | None = None
    prefix: str = ""
    token: str = ""
    """The credential that it demands for each request, if any."""


@asynccontextmanager
async def echo_server(*options: str) -> AsyncIterator[str]:
    port = free_port()
    async with running([sys.executable, ECHO, "--http", str(port), *options], listening(port)):
        yield f"http://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def taskgate(
    upstream: str, launcher: tuple[str, ...] = ("-m", "taskgate"), more: Mapping[str, Any] | None = None
) -> AsyncIterator[Target]:
    """One worker on the governed path: a scope and a rule are looked up for every call."""
    config: dict[str, Any] = {
        "schema": 1,
        "servers": {"up": {"url": upstream}},
        "governance": {"defaults": {"action": "forward"}, "rules": [{"match": "drop_*", "action": "deny"}]},
        "scopes": {"default": {"default_servers": ["*"]}},
        "telemetry": {"log_level": "warning"},
        **(more or {}),
    }
    async with running_gateway(config, launcher=launcher) as gateway:
        yield Target("taskgate", gateway.url, gateway.pid, "up__")


@asynccontextmanager
async def fastmcp(upstream: str, generation: str) -> AsyncIterator[Target]:
    port = free_port()
    command: list[str | Path] = [
        HOME / "fastmcp/bin/python",
        HERE / "fastmcp_proxy.py",
        upstream,
        str(port),
        generation,
    ]
    async with running(command, listening(port)) as program:
        yield Target("fastmcp proxy", f"http://127.0.0.1:{port}/mcp", program.pid)


@asynccontextmanager
async def mcp_proxy() -> AsyncIterator[Target]:
    """This one relays to a child over stdio, so it starts an echo server itself; only in the older generation."""
    port = free_port()
    command: list[str | Path] = [
        HOME / "mcp-proxy/bin/python",
        "-m",
        "mcp_proxy",
        "--log-level",
        "ERROR",
        "--port",
        str(port),
        "--",
    ]
    command += [sys.executable, ECHO, "--stdio"]
    async with running(command, listening(port)) as program:
        yield Target("mcp-proxy (stdio)", f"http://127.0.0.1:{port}/mcp", program.pid)


@asynccontextmanager
async def supergateway() -> AsyncIterator[Target]:
    """Serves a program on stdio over HTTP, with sessions; only in the older generation."""
    port = free_port()
    program = HOME / "supergateway/node_modules/.bin/supergateway"
    command: list[str | Path] = [HOME / "node", program, "--stdio", f"{sys.executable} {ECHO} --stdio"]
    command += ["--outputTransport", "streamableHttp", "--stateful", "--port", str(port), "--logLevel", "none"]
    async with running(command, listening(port)) as started:
        yield Target("supergateway (stdio)", f"http://127.0.0.1:{port}/mcp", started.pid)


@asynccontextmanager
async def contextforge(upstream: str) -> AsyncIterator[Target]:
    async with running_contextforge(upstream) as (url, pid, token):
        yield Target("ContextForge", url, pid, TOOL_PREFIX, token)


def relays(upstream: str, generation: str) -> dict[str, AbstractAsyncContextManager[Target]]:
    """The other relays that are installed and support the generation."""
    found: dict[str, AbstractAsyncContextManager[Target]] = {}
    if (HOME / "fastmcp/.installed").exists():
        found["fastmcp"] = fastmcp(upstream, generation)
    if generation == "2025" and (HOME / "contextforge/.installed").exists():
        found["contextforge"] = contextforge(upstream)
    if generation == "2025" and (HOME / "mcp-proxy/.installed").exists():
        found["mcp-proxy"] = mcp_proxy()
    if generation == "2025" and (HOME / "supergateway/.installed").exists():
        found["supergateway"] = supergateway()
    return found
