"""The real gateway in the test's process: `Lifecycle.serve`, as `taskgate serve` runs it, on the virtual loop.

What differs from a started process, and why, is in `conditions.py`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.virtual_time.api_replies import check_reply
from tests.virtual_time.callers import Answering, Caller, Caller2025, Caller2026, Exchange
from tests.virtual_time.http11 import Reply, Wire
from tests.virtual_time.loop import Process
from tests.virtual_time.processes import abandon_store, new_lifecycle
from tests.virtual_time.upstream import Upstream
from tests.virtual_time.waiting import the_loop, within

from taskgate.config.load import load
from taskgate.lifecycle import lifecycle

HOST = "127.0.0.1"
FIRST_PORT = 7467
LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
DUMPER = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper


@dataclass(frozen=True, slots=True)
class LogLine:
    level: str
    event: str
    facts: dict[str, Any]


class Gateway:
    """`async with Gateway(config, upstreams) as gate:`; see the package for how a test reads."""

    def __init__(
        self,
        config: Mapping[str, Any] | str | None = None,
        upstreams: Mapping[str, Upstream] | None = None,
        *,
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
        port: int = FIRST_PORT,
    ) -> None:
        self._config = config or {}
        self.upstreams = dict(upstreams or {})
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="virtual-time-"))
        self._env = {"TASKGATE_STATE_DIR": str(self.state), "HOME": str(self.folder), **(env or {})}
        self.address = (HOST, port)
        self._processes: list[Process] = []
        self._serving: asyncio.Task[None] | None = None
        self.process: Process
        self.life: lifecycle.Lifecycle
        """The gateway itself. Look into it only for what no caller can see."""

    @property
    def log(self) -> list[LogLine]:
        """Its log lines, over all its starts."""
        return [LogLine(*line) for process in self._processes for line in process.log]

    # Where things are

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def config_file(self) -> Path:
        return self.folder / "taskgate.yaml"

    @property
    def base(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    @property
    def url(self) -> str:
        return f"{self.base}/mcp"

    # Start, stop and crash

    async def __aenter__(self) -> Gateway:
        try:
            self.state.mkdir(parents=True, exist_ok=True)
            for name, upstream in self.upstreams.items():
                await upstream.start(name)
            self.write(self._config)
            await self.start()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._serving is not None and not self.process.is_dead:
                await self.stop()
        finally:
            await self._leave()

    async def _leave(self) -> None:
        for upstream in self.upstreams.values():
            await upstream.close()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, config: Mapping[str, Any] | str) -> None:
        """Write the configuration file; upstreams that it does not mention are added to its servers."""
        tree = dict(yaml.load(config, LOADER) or {}) if isinstance(config, str) else dict(config)
        servers = {name: dict(server) for name, server in (tree.get("servers") or {}).items()}
        for name, upstream in self.upstreams.items():
            servers[name] = {"url": upstream.url, **servers.get(name, {})}
        self.config_file.write_text(yaml.dump({**tree, "servers": servers}, Dumper=DUMPER, sort_keys=False))

    async def start(self) -> None:
        """Start on what the folder holds: the first start, or another one after `stop` or `crash`."""
        self.process = Process("gateway")
        self._processes.append(self.process)
        opened = asyncio.Event()
        self._serving = the_loop().create_task(self._serve(opened), name="the gateway", context=self.process.context())
        waiting = asyncio.create_task(opened.wait())
        await within(asyncio.wait({self._serving, waiting}, return_when=asyncio.FIRST_COMPLETED), "the gateway opens")
        waiting.cancel()
        if self._serving.done():
            await self._serving

    async def _serve(self, opened: asyncio.Event) -> None:
        self.life = new_lifecycle(load(self.config_file, self._env), self.address[0])
        await self.life.serve(self.address[1], lambda _host, _port: opened.set())

    async def stop(self) -> None:
        """Drain and end, as on SIGTERM."""
        self.send_signal(signal.SIGTERM)
        assert self._serving is not None
        await within(self._serving, "the gateway drains")
        self._serving = None

    async def ended(self) -> BaseException | None:
        """Wait until it has ended by itself; return what it raised."""
        assert self._serving is not None
        await within(asyncio.wait({self._serving}), "the gateway ends")
        error, self._serving = self._serving.exception(), None
        return error

    def send_signal(self, number: signal.Signals) -> None:
        the_loop().send_signal(self.process, number)

    def crash(self) -> None:
        """Kill it between two steps. What was committed is on the disk; nothing else of it ever happens."""
        the_loop().kill(self.process)
        abandon_store(the_loop(), self.life)

    async def restart(self) -> None:
        """Stop if it runs, then start on the same files."""
        if not self.process.is_dead and self._serving is not None:
            await self.stop()
        await self.start()

    async def reload(self, config: Mapping[str, Any] | str) -> None:
        """Write another configuration, send SIGHUP, and wait until it is in force or was refused."""
        self.write(config)
        seen = len(self.process.log)
        self.send_signal(signal.SIGHUP)

        async def logged() -> None:
            nonlocal seen
            while not any("reloaded" in event for _, event, _ in self.process.log[seen:]):
                seen = len(self.process.log)
                await asyncio.sleep(0.01)

        await within(logged(), "the reload")

    async def advance(self, seconds: float) -> None:
        """Let this much virtual time pass, with everything that happens in it."""
        await asyncio.sleep(seconds)

    # Callers

    async def caller(
        self,
        generation: str = "2025",
        *,
        scope: str = "",
        token: str | None = None,
        client: str = "test-client",
        capabilities: Mapping[str, Any] | None = None,
        answers: Mapping[str, Answering | Wire] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """A caller of this generation; one of 2025 has opened its session."""
        made = Caller2025 if generation == "2025" else Caller2026
        sent = {**(headers or {}), **({"authorization": f"Bearer {token}"} if token else {})}
        path = f"/mcp/{scope}" if scope else "/mcp"
        caller = made(self.address, path, capabilities=capabilities, client=client, headers=sent, answers=answers)
        if isinstance(caller, Caller2025):
            await caller.open()
        return caller

    @property
    def operator_token(self) -> str:
        return (self.state / "operator-token").read_text().strip()

    def http(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Exchange:
        """One HTTP exchange with any page of the gateway."""
        given = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        kind = {"content-type": "application/json"} if given else {}
        caller = Caller(self.address)
        return caller.send(method, path, {**caller.headers, **kind, **(headers or {})}, given)

    async def operator(self, method: str, path: str, body: Any = None) -> Reply:
        """The operator's JSON API, for example `await gate.operator("POST", f"/api/approvals/{id}/approve", {})`."""
        exchange = self.http(method, path, body, {"authorization": f"Bearer {self.operator_token}"})
        reply = await exchange.done()
        check_reply(self.life.dashboard.api.table, method, path, reply)
        return reply

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection, for bytes that are not valid HTTP."""
        return await asyncio.open_connection(*self.address)
