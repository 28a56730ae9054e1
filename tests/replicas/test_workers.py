"""`taskgate serve --workers N`: several processes on one port, of which each may die, and any may be asked for any session."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from tests.chaos.stage import LedgerFile, configuration, upstream_command
from tests.harness.commands import command
from tests.harness.gateway import Gateway
from tests.harness.plain_http import NO_TLS
from tests.harness.postgres import fresh_url
from tests.harness.programs import Program, free_port, listening, start, until_ready
from tests.harness.raw_client import RawClient
from tests.replicas.chaos import LEASE_LOST
from tests.replicas.test_two_gateways import DEADLINE_S, TASKS, operator

from taskgate.assembly.shared_store import Succession
from taskgate.cli.run_gateway import Inherited, internal_of

WORKERS = 2
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("workers")]


@dataclass
class Workers:
    parent: Program
    gateway: Gateway
    ledger: LedgerFile

    def pids(self) -> list[int]:
        pid = self.parent.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

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
                said = await http.get(f"{self.gateway.base}/ready", headers={"authorization": f"Bearer {token}"})
                for replica in said.json()["replicas"]:
                    if replica["self"]:
                        found[replica["id"]] = http
        return list(found.values())

    def lost_leases(self) -> int:
        return self.parent.said(1_000_000).count(LEASE_LOST)

    async def reads(self, asking: RawClient, name: str) -> str:
        """A call in a session, and how it is called in the books. A busy machine may cost the home of the session its lease
        meanwhile, and the outcome is told as unknown: if that is what happened a worker says so, and another call is made."""
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


async def living(gateway: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await operator(gateway, "GET", "/ready")).json()["replicas"]
    return [replica for replica in found if replica["alive"]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Workers]:
    """Without a word about internal addresses in the configuration."""
    folder = tmp_path_factory.mktemp("workers")
    port, ledger = free_port(), LedgerFile(folder / "ledger.jsonl")
    upstream = await start(upstream_command(port, ledger, "2026"))
    gateway = Gateway(folder, free_port())
    gateway.state.mkdir()
    gateway.write({**configuration(port), "store": {"url": fresh_url()}})
    words = [sys.executable, "-m", "taskgate", "serve", "-c", gateway.config, "--workers", str(WORKERS)]
    words += ["--port", str(gateway.port)]
    parent = await start(words, {"TASKGATE_STATE_DIR": str(gateway.state)})
    found = Workers(parent, gateway, ledger)
    try:
        await until_ready(upstream, listening(port))
        await until_ready(parent, gateway.is_ready)
        await found.all_there()
        yield found
        pids = found.pids()
        assert await parent.end(signal.SIGTERM, within=60) == 0
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    finally:
        await parent.end()
        await upstream.end()


async def test_a_session_is_answered_by_whichever_worker_accepts(workers: Workers) -> None:
    async with AsyncExitStack() as stack:
        connections = await workers.connections(stack)
        home = await stack.enter_async_context(RawClient(workers.gateway.url, http=connections[0]))
        for number, http in enumerate(connections):
            asking = RawClient(workers.gateway.url, headers=home.headers, http=http)
            call = await workers.reads(asking, f"s{number}")
            assert workers.ledger.count(call) == 1


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_a_worker_that_ends_is_started_again_and_sessions_go_on(workers: Workers, sign: signal.Signals) -> None:
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
    given = Inherited(3, 4, 5, Succession("gw_2", "gw_1"), found[1])
    assert Inherited.read(str(given)) == given


async def test_workers_on_a_sqlite_store_are_refused_with_the_reason(tmp_path: Path) -> None:
    config = tmp_path / "taskgate.yaml"
    config.write_text("servers: {}\n")
    code, _, said = await command(
        "serve", "-c", str(config), "--workers", "2", env={"TASKGATE_STATE_DIR": str(tmp_path)}
    )
    assert code == 2
    assert "postgresql://" in said
    assert "leave out --workers" in said
