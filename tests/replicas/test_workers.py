"""`taskgate serve --workers N`: several processes on one port, of which each may be killed, and any may receive requests of
any session."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from cryptography import x509
from tests.chaos.crash_setup import LedgerFile, configuration, upstream_command
from tests.harness.commands import command
from tests.harness.gateway import Gateway
from tests.harness.plain_http import NO_TLS
from tests.harness.postgres import migrated_url
from tests.harness.programs import Program, free_port, listening, start, until_ready
from tests.harness.raw_client import RawClient
from tests.identity.test_listener_tls import certificate, trusting, write
from tests.replicas.chaos import LEASE_LOST
from tests.replicas.test_two_gateways import DEADLINE_S, TASKS, operator

from taskgate.assembly.shared_store import Succession
from taskgate.cli.workers import Inherited, internal_of
from taskgate.inbound.http.handover import MAX_REQUEST_BYTES

WORKERS = 2
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("workers")]


@dataclass
class Workers:
    parent: Program
    gateway: Gateway
    ledger: LedgerFile
    tls: ssl.SSLContext | None = None

    @property
    def base(self) -> str:
        return self.gateway.base if self.tls is None else f"https://localhost:{self.gateway.port}"

    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(timeout=60, verify=NO_TLS if self.tls is None else self.tls)

    def pids(self) -> list[int]:
        pid = self.parent.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def pid_of(self, worker: str) -> int:
        words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0") for pid in self.pids()}
        given = {pid: Inherited.read(text[text.index("--inherited") + 1]) for pid, text in words.items()}
        return next(pid for pid, inherited in given.items() if inherited.succession.owner == worker)

    async def all_there(self, without: int | None = None) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.pids()) < WORKERS or without in self.pids() or len(await living(self.gateway)) < WORKERS:
                await asyncio.sleep(0.1)

    async def answers(self, call: str) -> None:
        async with RawClient(self.gateway.url, stateless=True, capabilities=TASKS) as caller:
            assert "result" in (await caller.call("books__read", {"call": call})).reply
        assert self.ledger.count(call) == 1

    async def connections(self, stack: AsyncExitStack) -> list[httpx2.AsyncClient]:
        """One kept connection to each worker."""
        found: dict[str, httpx2.AsyncClient] = {}
        token = (self.gateway.state / "operator-token").read_text().strip()
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < WORKERS:
                http = await stack.enter_async_context(httpx2.AsyncClient(timeout=60, verify=NO_TLS))
                reply = await http.get(f"{self.gateway.base}/ready", headers={"authorization": f"Bearer {token}"})
                for replica in reply.json()["replicas"]:
                    if replica["self"]:
                        found[replica["id"]] = http
        return list(found.values())

    def lost_leases(self) -> int:
        return self.parent.output(1_000_000).count(LEASE_LOST)

    async def reads(self, asking: RawClient, name: str) -> str:
        """A call in a session, and its name in the ledger. A busy machine may cost the home of the session its lease
        meanwhile, and the outcome is reported as unknown: if a worker logged that, another call is made."""
        numbers = itertools.count()
        while True:
            lost, call = self.lost_leases(), f"{name}-{next(numbers)}"
            answer = await asking.call("books__read", {"call": call})
            if "error" not in answer.reply or answer.error["data"]["error_type"] != "outcome_unknown":
                assert "result" in answer.reply, answer.reply
                return call
            async with asyncio.timeout(DEADLINE_S):
                while self.lost_leases() == lost:
                    await asyncio.sleep(0.1)


class RawConnection:
    """One TCP connection, and which worker answers on it."""

    def __init__(self, gateway: Gateway, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._token = (gateway.state / "operator-token").read_text().strip()
        self.reader, self.writer = reader, writer
        self._numbers = itertools.count(1)

    @classmethod
    async def open(cls, workers: Workers) -> RawConnection:
        port, name = workers.gateway.port, "localhost" if workers.tls is not None else None
        return cls(
            workers.gateway,
            *await asyncio.open_connection("127.0.0.1", port, ssl=workers.tls, server_hostname=name),
        )

    def send(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> None:
        self.writer.write(self._request(method, path, headers, body))

    def _request(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{lines}content-length: {len(body)}\r\n\r\n"
        return head.encode() + body

    async def receive(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
            assert b" 200 " in head, head
            return await self.reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))

    async def worker(self) -> str:
        self.send("GET", "/ready", {"authorization": f"Bearer {self._token}"})
        replicas = json.loads(await self.receive())["replicas"]
        return str(next(replica["id"] for replica in replicas if replica["self"]))

    def send_calls(self, session: RawClient, *calls: str, fill: str = "") -> None:
        """In one write."""
        self.writer.write(b"".join(self._call(session, call, fill) for call in calls))

    def _call(self, session: RawClient, call: str, fill: str) -> bytes:
        params = {"name": "books__read", "arguments": {"call": call, "seconds": 0, "fill": fill}}
        message = {"jsonrpc": "2.0", "id": next(self._numbers), "method": "tools/call", "params": params}
        common = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        return self._request("POST", "/mcp", {**common, **session.headers}, json.dumps(message).encode())

    async def called(self, session: RawClient, call: str, fill: str = "") -> None:
        self.send_calls(session, call, fill=fill)
        assert call.encode() in await self.receive()


async def session_at(workers: Workers, worker: str, stack: AsyncExitStack) -> RawClient:
    """A session that this worker holds."""
    token = (workers.gateway.state / "operator-token").read_text().strip()
    async with asyncio.timeout(DEADLINE_S):
        while True:
            http = await stack.enter_async_context(workers.client())
            reply = await http.get(f"{workers.base}/ready", headers={"authorization": f"Bearer {token}"})
            if next(replica["id"] for replica in reply.json()["replicas"] if replica["self"]) == worker:
                return await stack.enter_async_context(RawClient(f"{workers.base}/mcp", http=http))


async def two_connections(workers: Workers, stack: AsyncExitStack) -> tuple[RawConnection, RawConnection, RawClient]:
    """Connections to both workers, and a session at the first one's."""
    found: dict[str, RawConnection] = {}
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < WORKERS:
            connection = await RawConnection.open(workers)
            stack.callback(connection.writer.close)
            found.setdefault(await connection.worker(), connection)
    (home, first), (_, second) = found.items()
    return first, second, await session_at(workers, home, stack)


async def living(gateway: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await operator(gateway, "GET", "/ready")).json()["replicas"]
    return [replica for replica in found if replica["alive"]]


@asynccontextmanager
async def several_workers(folder: Path, tls: ssl.SSLContext | None = None, **config: Any) -> AsyncIterator[Workers]:
    """Without internal addresses in the configuration."""
    port, ledger = free_port(), LedgerFile(folder / "ledger.jsonl")
    upstream = await start(upstream_command(port, ledger, "2026"))
    gateway = Gateway(folder, free_port())
    gateway.state.mkdir()
    gateway.write({**configuration(port), "store": {"url": migrated_url()}, **config})
    words: list[str | Path] = [
        sys.executable,
        "-m",
        "taskgate",
        "serve",
        "-c",
        gateway.config,
        "--workers",
        str(WORKERS),
    ]
    words += ["--port", str(gateway.port)]
    parent = await start(words, {"TASKGATE_STATE_DIR": str(gateway.state)})
    try:
        await until_ready(upstream, listening(port))
        await until_ready(parent, listening(gateway.port) if tls is not None else gateway.is_ready)
        yield Workers(parent, gateway, ledger, tls)
    finally:
        await parent.end()
        await upstream.end()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Workers]:
    async with several_workers(tmp_path_factory.mktemp("workers")) as found:
        await found.all_there()
        yield found
        pids = found.pids()
        assert await found.parent.end(signal.SIGTERM, within=60) == 0
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def test_connections_of_tls_stay_and_their_requests_are_forwarded(tmp_path: Path) -> None:
    made = certificate("localhost", None, x509.DNSName("localhost"))
    cert, key = write(tmp_path, "gate", made)
    config = {"listen": {"tls": {"cert": cert, "key": key}}}
    async with several_workers(tmp_path, trusting(cert), **config) as workers, AsyncExitStack() as stack:
        _first, second, session = await two_connections(workers, stack)
        here = await second.worker()
        for number in range(2):
            await second.called(session, f"tls-{number}")
            assert workers.ledger.count(f"tls-{number}") == 1
            assert await second.worker() == here


async def test_a_session_is_answered_by_every_worker(workers: Workers) -> None:
    async with AsyncExitStack() as stack:
        connections = await workers.connections(stack)
        home = await stack.enter_async_context(RawClient(workers.gateway.url, http=connections[0]))
        for number, http in enumerate(connections):
            asking = RawClient(workers.gateway.url, headers=home.headers, http=http)
            call = await workers.reads(asking, f"s{number}")
            assert workers.ledger.count(call) == 1


async def test_a_connection_moves_to_the_worker_that_holds_its_session(workers: Workers) -> None:
    """From then on a call costs what it costs with one process: nothing is forwarded."""
    async with AsyncExitStack() as stack:
        first, second, session = await two_connections(workers, stack)
        assert await first.worker() != await second.worker()
        for number in range(3):
            await second.called(session, f"moves-{number}")
            assert workers.ledger.count(f"moves-{number}") == 1
            assert await second.worker() == await first.worker()


async def test_a_connection_moves_once(workers: Workers) -> None:
    """A client that uses one connection for sessions of both workers would send it to and fro with every call."""
    async with AsyncExitStack() as stack:
        first, second, session = await two_connections(workers, stack)
        home, away = await first.worker(), await second.worker()
        await second.called(session, "once-there")
        assert await second.worker() == home
        other = await session_at(workers, away, stack)
        await second.called(other, "not-back")
        assert workers.ledger.count("not-back") == 1
        assert await second.worker() == home


async def test_pipelined_requests_are_all_answered_in_order(workers: Workers) -> None:
    """What was read of a second request could not move along: only the last one takes the connection with it."""
    async with AsyncExitStack() as stack:
        _first, second, session = await two_connections(workers, stack)
        second.send_calls(session, *(f"pipelined-{number}" for number in range(3)))
        for number in range(3):
            assert f"pipelined-{number}".encode() in await second.receive()
            assert workers.ledger.count(f"pipelined-{number}") == 1


async def test_a_request_that_is_too_long_for_a_datagram_is_forwarded(workers: Workers) -> None:
    async with AsyncExitStack() as stack:
        _first, second, session = await two_connections(workers, stack)
        here = await second.worker()
        await second.called(session, "long", "x" * MAX_REQUEST_BYTES)
        assert workers.ledger.count("long") == 1
        assert await second.worker() == here


async def test_a_stream_does_not_depend_on_the_worker_that_accepted_its_connection(workers: Workers) -> None:
    async with AsyncExitStack() as stack:
        first, second, session = await two_connections(workers, stack)
        victim = workers.pid_of(await second.worker())
        second.send("GET", "/mcp", {"accept": "text/event-stream", **session.headers})
        async with asyncio.timeout(DEADLINE_S):
            assert b" 200 " in await second.reader.readuntil(b"\r\n\r\n")
        os.kill(victim, signal.SIGKILL)
        await workers.all_there(without=victim)
        first.send("DELETE", "/mcp", session.headers)
        async with asyncio.timeout(DEADLINE_S):
            await second.reader.readuntil(b"0\r\n\r\n")  # the stream is ended by its session


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_a_worker_that_ends_is_restarted_and_sessions_continue(workers: Workers, sign: signal.Signals) -> None:
    async with AsyncExitStack() as stack:
        connections = await workers.connections(stack)
        sessions = [
            await stack.enter_async_context(RawClient(workers.gateway.url, http=connection))
            for connection in connections
        ]
        victim = workers.pids()[0]
        os.kill(victim, sign)
        await workers.answers(f"{sign.name}-plain")
        await workers.all_there(without=victim)
        await workers.answers(f"{sign.name}-after")
        for number, session in enumerate(sessions):
            http = await stack.enter_async_context(httpx2.AsyncClient(timeout=60, verify=NO_TLS))
            asking = RawClient(workers.gateway.url, headers=session.headers, http=http)
            await workers.reads(asking, f"{sign.name}-{number}")


@pytest.mark.parametrize(
    ("configured", "found"),
    [
        (None, ["/s/0.sock", "/s/1.sock"]),
        ("10.0.0.1:7468", ["10.0.0.1:7468", "10.0.0.1:7469"]),
        ("[fd00::1]:7468", ["[fd00::1]:7468", "[fd00::1]:7469"]),
        ("127.0.0.1:0", ["127.0.0.1:0", "127.0.0.1:0"]),
        ("/run/gate.sock", ["/run/gate.sock.0", "/run/gate.sock.1"]),
        ("/run/gate/", ["/run/gate/", "/run/gate/"]),
    ],
)
async def test_no_two_workers_have_the_same_internal_address(configured: str | None, found: list[str]) -> None:
    """A free port (0) and a folder (/) are made one's own when they are bound."""
    assert [internal_of(place, configured, "/s") for place in range(2)] == found
    given = Inherited(3, 4, 5, Succession("gw_2", "gw_1"), found[1], "/tmp/workers, of two")
    assert Inherited.read(str(given)) == given


async def test_workers_on_a_sqlite_store_are_refused_with_the_reason(tmp_path: Path) -> None:
    config = tmp_path / "taskgate.yaml"
    config.write_text("servers: {}\n")
    code, _, output = await command(
        "serve", "-c", str(config), "--workers", "2", env={"TASKGATE_STATE_DIR": str(tmp_path)}
    )
    assert code == 2
    assert "postgresql://" in output
    assert "remove --workers" in output
    assert "--workers is deprecated" in output
