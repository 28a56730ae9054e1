"""A pytest plugin for the SDK's own interaction tests: their servers listen on loopback, and their clients come through Taskgate.

The tests are run from the SDK's source distribution, unchanged. Only the factory that connects a client to a server over HTTP is
replaced; with `INTERACTION_WAY=direct` the gateway is left out, which is the control.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
import uvicorn
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

THROUGH = os.environ.get("INTERACTION_WAY") != "direct"
READY_S = 60
SLOWER = 12
"""The tests give each step five seconds, all in one process; here a gateway takes a server in within that time."""
_fail_after = anyio.fail_after


def patient_fail_after(delay: float | None, shield: bool = False) -> Any:
    return _fail_after(None if delay is None else delay * SLOWER, shield)


anyio.fail_after = patient_fail_after  # type: ignore[assignment]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only what goes over the HTTP arm of the matrix can be pointed at another server."""
    kept = [item for item in items if "[streamable-http-2" in item.name]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_collection_finish(session: pytest.Session) -> None:
    for name, module in list(sys.modules.items()):
        if name.endswith("interaction.conftest"):
            module._FACTORIES["streamable-http"] = connect_over_loopback


@asynccontextmanager
async def connect_over_loopback(server: Any, *, spec_version: str, **given: Any) -> AsyncIterator[Client]:
    mode = spec_version if spec_version in MODERN_PROTOCOL_VERSIONS else "legacy"
    async with listening(server) as direct, before(direct) as url, httpx2.AsyncClient(timeout=60) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode, **given) as client:
            yield client


@asynccontextmanager
async def listening(server: Any) -> AsyncIterator[str]:
    app = server.streamable_http_app(
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
    )
    at = socket.socket()
    at.bind(("127.0.0.1", 0))
    served = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    job = asyncio.create_task(served.serve(sockets=[at]))
    try:
        while not served.started:
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{at.getsockname()[1]}/mcp"
    finally:
        served.should_exit = True
        await job


class SharedGateway:
    """One gateway for a run of pytest: each test brings a server of its own, under a new name, by a reload."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="interaction-"))
        self.count = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.write({})
        environment = {
            "TASKGATE_STATE_DIR": str(self.folder / "state"),
            "PYTHONPATH": os.environ["INTERACTION_SOURCES"],
        }
        words = [os.environ["INTERACTION_PYTHON"], "-m", "taskgate", "serve", "-c", str(self.folder / "taskgate.yaml")]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*words, "--host", "127.0.0.1", "--port", str(self.port)],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
            )

    def write(self, servers: dict[str, Any]) -> None:
        """No call may become a task: the tests do not support tasks."""
        scopes = {name: {"default_servers": [name], "names": "plain", "helper_tools": "never"} for name in servers}
        config = {"schema": 1, "servers": servers, "scopes": scopes, "tasks": {"promote_after_ms": 0}}
        made = self.folder / "new.yaml"
        made.write_text(json.dumps(config), encoding="utf-8")
        made.replace(self.folder / "taskgate.yaml")

    def add(self, url: str) -> str:
        """Called in a thread; the name of the server, once the gateway has asked it for its lists."""
        self.count += 1
        name = f"sdk{self.count}"
        # The gateway watches its file. A signal besides would make it reload and notify clients twice.
        self.write({name: {"url": url}})
        deadline = time.monotonic() + READY_S
        while not self.has_asked(name):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"the gateway did not take {name}: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        return name

    def has_asked(self, name: str) -> bool:
        """Whether its lists were fetched or failed. An earlier client would get a list_changed notification, and the tests
        count the notifications of their client.
        """
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=5) as answer:
                catalog = json.load(answer).get("catalogs", {}).get(name)
        except OSError:
            return False
        return catalog is not None and (catalog["listed"] or not catalog["problem"].endswith(" yet"))

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)


shared: list[SharedGateway] = []


def pytest_sessionfinish() -> None:
    for gateway in shared:
        gateway.end()


def added(url: str) -> str:
    if not shared:
        shared.append(SharedGateway())
    name = shared[0].add(url)
    return f"http://127.0.0.1:{shared[0].port}/mcp/{name}"


@asynccontextmanager
async def before(direct: str) -> AsyncIterator[str]:
    """The URL of a gateway in front of it, or its own."""
    yield await anyio.to_thread.run_sync(added, direct) if THROUGH else direct
