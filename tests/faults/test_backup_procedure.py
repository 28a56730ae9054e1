"""Backup and recovery as docs/backups.md describes them, command by command, with a gateway and its store in other processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.docs.blocks import blocks_of
from tests.faults.matrix import executed_in
from tests.harness.gateway import Gateway
from tests.harness.postgres import RestartableServer
from tests.harness.programs import free_port, listening, running
from tests.harness.raw_client import RawClient

SERVE = "taskgate serve"


def commands(section: str) -> list[list[str]]:
    """The commands of each console block under this heading, without the one that starts the gateway."""
    text = Path("docs/backups.md").read_text(encoding="utf-8")
    begins = text[: text.index(f"## {section}")].count("\n")
    ends = text.find("\n## ", text.index(f"## {section}") + 3)
    last = text[:ends].count("\n") if ends > 0 else text.count("\n")
    blocks = [block for block in blocks_of("docs/backups.md") if begins < block.line <= last]
    return [
        [line.removeprefix("$ ") for line in block.body.splitlines() if not line.startswith(f"$ {SERVE}")]
        for block in blocks
    ]


async def run(lines: list[str], folder: Path, env: dict[str, str]) -> None:
    """`taskgate` is this checkout's."""
    program = folder / "bin" / "taskgate"
    if not program.exists():
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m taskgate "$@"\n')
        program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), env.get("PATH", ""), os.environ["PATH"]])
    for line in lines:
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", line), cwd=folder, env={**os.environ, **env, "PATH": path}
        )
        assert await process.wait() == 0, line


@asynccontextmanager
async def server_of(port: int) -> AsyncIterator[None]:
    async with running([sys.executable, "-m", "tests.benchmarks.mixed_server", str(port)], listening(port)):
        yield


async def ended(gateway: Gateway, task_id: str) -> dict[str, Any]:
    async with RawClient(gateway.url) as caller:
        reply = await caller.request("tasks/result", {"taskId": task_id})
        return reply.reply


async def lives(gateway: Gateway, env: dict[str, str], section: str, config: dict[str, Any], port: int) -> None:
    backup, recovery = commands(section)
    assert backup
    assert any("taskgate store restored" in line for line in recovery)
    gateway.state.mkdir(parents=True)
    gateway.write(config)
    async with server_of(port):
        await gateway.start()
        await gateway.until_listed()
    async with RawClient(gateway.url) as caller:
        made = await caller.request("tools/call", {"name": "far__quick", "arguments": {}, "task": {"ttl": 600_000}})
        task_id = made.result["task"]["taskId"]
    await gateway.stop()
    await run(backup, gateway.folder, env)
    async with server_of(port):
        await gateway.start()
        assert "result" in await ended(gateway, task_id)
        await gateway.stop()
        await run(recovery, gateway.folder, env)
        await gateway.start()
        assert executed_in(await ended(gateway, task_id)) == "maybe"
        await gateway.stop()


@pytest.mark.slow
async def test_sqlite_backup_and_recovery_as_documented(tmp_path: Path) -> None:
    port = free_port()
    gateway = Gateway(tmp_path, free_port())
    env = {"TASKGATE_STATE_DIR": str(gateway.state), "BACKUP": str(tmp_path / "backup")}
    config = {"servers": {"far": {"url": f"http://127.0.0.1:{port}/mcp"}}}
    await lives(gateway, env, "SQLite", config, port)


@pytest.mark.slow
async def test_postgres_backup_and_recovery_as_documented(tmp_path: Path) -> None:
    port = free_port()
    gateway = Gateway(tmp_path, free_port())
    async with RestartableServer() as database:
        if shutil.which("pg_dump", path=str(database.programs)) is None:
            pytest.skip("needs pg_dump of the server's version")
        env = {
            "TASKGATE_STATE_DIR": str(gateway.state),
            "BACKUP": str(tmp_path / "backup.dump"),
            "DATABASE": database.url,
            "PATH": str(database.programs),
        }
        config = {"servers": {"far": {"url": f"http://127.0.0.1:{port}/mcp"}}, "store": {"url": database.url}}
        await lives(gateway, env, "PostgreSQL", config, port)
