"""`taskgate serve --workers N`: several processes on one port, of which each may die."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.chaos.stage import LedgerFile, configuration, upstream_command
from tests.harness.commands import command
from tests.harness.gateway import Gateway
from tests.harness.postgres import fresh_url
from tests.harness.programs import free_port, listening, start, until_ready
from tests.harness.raw_client import RawClient
from tests.replicas.test_two_gateways import DEADLINE_S, TASKS, operator

WORKERS = 2


async def living(gateway: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await operator(gateway, "GET", "/ready")).json()["replicas"]
    return [replica for replica in found if replica["alive"]]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_workers_share_a_port_are_started_again_and_drain_together(tmp_path: Path) -> None:
    port, ledger = free_port(), LedgerFile(tmp_path / "ledger.jsonl")
    upstream = await start(upstream_command(port, ledger, "2026"))
    gateway = Gateway(tmp_path, free_port())
    gateway.state.mkdir()
    gateway.write({**configuration(port), "store": {"url": fresh_url()}})
    words = [sys.executable, "-m", "taskgate", "serve", "-c", gateway.config, "--workers", str(WORKERS)]
    words += ["--port", str(gateway.port)]
    parent = await start(words, {"TASKGATE_STATE_DIR": str(gateway.state)})
    try:
        await until_ready(upstream, listening(port))
        await until_ready(parent, gateway.is_ready)
        async with asyncio.timeout(DEADLINE_S):
            while len(await living(gateway)) < WORKERS:
                await asyncio.sleep(0.1)
        before = children(parent.pid)
        assert len(before) == WORKERS
        await _answers(gateway, ledger, "c1")
        os.kill(before[0], signal.SIGKILL)
        await _answers(gateway, ledger, "c2")
        async with asyncio.timeout(DEADLINE_S):
            while len(children(parent.pid)) < WORKERS or before[0] in children(parent.pid):
                await asyncio.sleep(0.1)
            while len(await living(gateway)) < WORKERS:
                await asyncio.sleep(0.1)
        await _answers(gateway, ledger, "c3")
        after = children(parent.pid)
        assert await parent.end(signal.SIGTERM, within=60) == 0
        assert not [pid for pid in after if Path(f"/proc/{pid}").exists()]
    finally:
        await parent.end()
        await upstream.end()


async def _answers(gateway: Gateway, ledger: LedgerFile, call: str) -> None:
    async with RawClient(gateway.url, stateless=True, capabilities=TASKS) as caller:
        assert "result" in (await caller.call("books__read", {"call": call})).reply
    assert ledger.count(call) == 1


async def test_workers_on_a_sqlite_store_are_refused_with_the_reason(tmp_path: Path) -> None:
    config = tmp_path / "taskgate.yaml"
    config.write_text("servers: {}\n")
    code, _, said = await command(
        "serve", "-c", str(config), "--workers", "2", env={"TASKGATE_STATE_DIR": str(tmp_path)}
    )
    assert code == 2
    assert "postgresql://" in said
    assert "leave out --workers" in said
