"""Gateways on one PostgreSQL store in the test's own process, in real time, and an upstream with a ledger.

They are what `taskgate serve` runs, on sockets of this machine; a process of its own is only needed to be killed or paused.
`DatabaseWire` is a proxy between a gateway and the database that can be cut or stalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs, quote, urlsplit

import httpx2
import yaml
from tests.chaos import ledger_server
from tests.chaos.crash_setup import LedgerFile, configuration
from tests.harness.plain_http import NO_TLS
from tests.harness.postgres import migrated_url
from tests.harness.programs import free_port
from tests.harness.raw_client import RawClient

from taskgate.assembly.open_app import open_app
from taskgate.config.load import load
from taskgate.lifecycle import lifecycle
from taskgate.local_gateway import NoExtraEndpoint
from taskgate.store.postgres.store import PostgresStore

DEADLINE_S = 90
OVER = ("completed", "failed", "cancelled")
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {"form": {}}}


@dataclass
class HeldGateway:
    """One gateway of the setup."""

    folder: Path
    port: int
    life: lifecycle.Lifecycle | None = None
    serving: asyncio.Task[None] | None = None

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.base}/mcp"

    @property
    def store(self) -> PostgresStore:
        assert self.life is not None
        store = self.life.app.store
        assert isinstance(store, PostgresStore)
        return store

    def write(self, config: dict[str, Any]) -> None:
        (self.folder / "state").mkdir(parents=True, exist_ok=True)
        (self.folder / "taskgate.yaml").write_text(yaml.safe_dump(config))

    async def start(self) -> None:
        env = {"TASKGATE_STATE_DIR": str(self.folder / "state"), "HOME": str(self.folder)}
        loaded = load(self.folder / "taskgate.yaml", env)
        opened = asyncio.Event()
        self.life = lifecycle.Lifecycle(open_app(loaded), "127.0.0.1", NoExtraEndpoint, when_lost=lambda: None)
        self.serving = asyncio.create_task(self.life.serve(self.port, lambda _host, _port: opened.set()))
        waiting = asyncio.create_task(opened.wait())
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait({self.serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self.serving.done():
            await self.serving
        await until(
            lambda: self.store.replicas
        )  # from now on it receives announcements of others, which are not stored

    async def stop(self) -> None:
        if self.life is not None and self.serving is not None:
            self.life.stop()
            async with asyncio.timeout(DEADLINE_S):
                await self.serving
            self.serving = None

    async def operator(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        token = (self.folder / "state" / "operator-token").read_text().strip()
        async with httpx2.AsyncClient(timeout=60, verify=NO_TLS) as http:
            return await http.request(
                method, f"{self.base}{path}", json=body, headers={"authorization": f"Bearer {token}"}
            )

    def caller(self, *, stateless: bool = True, **more: Any) -> RawClient:
        return RawClient(self.url, stateless=stateless, **more)


@dataclass
class Setup:
    gateways: list[HeldGateway]
    ledger: LedgerFile
    url: str
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def a(self) -> HeldGateway:
        return self.gateways[0]

    @property
    def b(self) -> HeldGateway:
        return self.gateways[1]

    async def begin(self, gateway: HeldGateway, tool: str, call: str, seconds: float = 0) -> str:
        """A call that becomes a task at this gateway."""
        async with gateway.caller(stateless=False, capabilities={"elicitation": {}}) as caller:
            answer = await caller.call(f"books__{tool}", {"call": call, "seconds": seconds}, task={"ttl": 600_000})
            found: str = answer.result["task"]["taskId"]
            return found

    async def ended(self, gateway: HeldGateway, task_id: str) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_S), gateway.caller(capabilities=TASKS) as caller:
            while True:
                shown = (await caller.request("tasks/get", {"taskId": task_id})).result
                if shown["status"] in OVER:
                    return shown
                await asyncio.sleep(0.05)


async def until(fact: Callable[[], Any]) -> Any:
    """What `fact` gives, as soon as it gives something; it may be asynchronous."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = fact()
            found = await found if asyncio.iscoroutine(found) else found
            if found:
                return found
            await asyncio.sleep(0.03)


@asynccontextmanager
async def ledger_upstream(path: Path, kind: str) -> AsyncIterator[int]:
    port = free_port()
    running = asyncio.create_task(ledger_server.main(port, path, kind))
    try:
        yield port
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def gateways(
    folder: Path,
    *,
    number: int = 2,
    kind: str = "2026",
    internal: bool = True,
    url: str = "",
    urls: Callable[[str, int], str] = lambda url, _index: url,
    more: Callable[[int], dict[str, Any]] = lambda _index: {},
    passthrough: bool = False,
    **config: Any,
) -> AsyncIterator[Setup]:
    """`url` is the database, by default a migrated one; `urls` has its address for each gateway, `more` the settings of single
    gateways."""
    url, ledger = url or migrated_url(), LedgerFile(folder / "ledger.jsonl")
    async with ledger_upstream(ledger.path, kind) as port:
        setup = Setup([], ledger, url, {**configuration(port), **config})
        for index in range(number):
            gateway = HeldGateway(folder / f"g{index}", free_port())
            listen = {"listen": {"internal": f"127.0.0.1:{free_port()}"}} if internal else {}
            store = {"url": urls(url, index), "unsafe_degraded_passthrough": passthrough}
            gateway.write({**setup.config, "store": store, **listen, **more(index)})
            setup.gateways.append(gateway)
        with patch.object(lifecycle, "GarbageCollector"):
            try:
                for gateway in setup.gateways:
                    await gateway.start()
                yield setup
            finally:
                for gateway in setup.gateways:
                    await gateway.stop()


class DatabaseWire:
    """Passes bytes between gateways and the database, from a thread of its own: opening a store blocks its caller."""

    def __init__(self, url: str) -> None:
        query = parse_qs(urlsplit(url).query)
        self._to = (query["host"][0], int(query.get("port", ["5432"])[0]))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: set[asyncio.StreamWriter] = set()
        self.is_silent = False
        """Bytes are dropped without an error on either side."""
        self.refuses = False
        self.port = 0

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def through(self, url: str) -> str:
        """The address of the same store by way of this."""
        parts = urlsplit(url)
        body = {key: values[0] for key, values in parse_qs(parts.query).items()}
        body |= {"host": "127.0.0.1", "port": str(self.port)}
        query = "&".join(f"{key}={quote(value, safe='')}" for key, value in body.items())
        return f"postgresql://{parts.path}?{query}"

    def cut(self) -> None:
        """Break every connection that is open."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(30)

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._cut()

    async def _cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._server = server

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        host, port = self._to
        if host.startswith("/"):
            back, forth = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            back, forth = await asyncio.open_connection(host, port)
        self._open |= {writer, forth}
        await asyncio.gather(self._pass(reader, forth), self._pass(back, writer), return_exceptions=True)
        for end in (writer, forth):
            self._open.discard(end)
            end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                while self.is_silent:
                    await asyncio.sleep(0.02)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@contextmanager
def database_wire(url: str) -> Iterator[DatabaseWire]:
    wire = DatabaseWire(url)
    wire.start()
    try:
        yield wire
    finally:
        wire.is_silent = False
        wire.stop()


@asynccontextmanager
async def gateways_wired(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Setup, DatabaseWire]]:
    """Two gateways, of which the first reaches the database through a wire that can be cut."""
    wires = list[DatabaseWire]()
    with contextlib.ExitStack() as open_wires:

        def through(url: str, index: int) -> str:
            if index:
                return url
            wires.append(open_wires.enter_context(database_wire(url)))
            return wires[0].through(url)

        async with gateways(tmp_path, urls=through, **settings) as setup:
            try:
                yield setup, wires[0]
            finally:
                wires[0].is_silent = wires[0].refuses = False
