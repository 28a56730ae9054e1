"""Clients with bridges and the local gateways they start; a test leaves no process behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
MIRROR = ROOT / "tests" / "peers" / "mirror_server.py"
WAIT_S = 90.0
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


@dataclass(slots=True)
class Client:
    """A client that started `taskgate stdio` and exchanges lines with it."""

    process: asyncio.subprocess.Process
    received: dict[Any, dict[str, Any]] = field(default_factory=dict)
    notifications: list[dict[str, Any]] = field(default_factory=list)

    def send(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def ask(self, request_id: Any, method: str, **params: Any) -> None:
        self.send({"id": request_id, "method": method, "params": params})

    def call(self, request_id: Any, tool: str, **arguments: Any) -> None:
        self.ask(request_id, "tools/call", name=tool, arguments=arguments)

    async def answer(self, request_id: Any) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            while request_id not in self.received:
                line = await self.process.stdout.readline()
                assert line, f"it ended without an answer to {request_id}"
                message = json.loads(line)
                (
                    self.received.__setitem__(message["id"], message)
                    if "id" in message
                    else self.notifications.append(message)
                )
        return self.received.pop(request_id)

    async def result(self, request_id: Any) -> dict[str, Any]:
        answer = await self.answer(request_id)
        assert "result" in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    async def open(self) -> None:
        self.ask("open", "initialize", **HELLO)
        await self.result("open")
        self.send({"method": "notifications/initialized"})

    async def disconnect(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return await asyncio.wait_for(self.process.wait(), WAIT_S)


@dataclass(slots=True)
class Setup:
    """A configuration and a state folder of a test's own."""

    folder: Path
    runtime: Path
    env: dict[str, str] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "taskgate.yaml"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def environment(self) -> dict[str, str]:
        given = {"TASKGATE_STATE_DIR": str(self.state), "XDG_RUNTIME_DIR": str(self.runtime)}
        return {**os.environ, **given, **self.env}

    def write(self, config: Mapping[str, Any]) -> None:
        self.config.write_text(yaml.safe_dump(dict(config), sort_keys=False))

    def command_line(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "taskgate", "stdio", "-c", str(self.config), *more]

    async def client(
        self, *more: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, opened: bool = True
    ) -> Client:
        with (self.folder / "bridges.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self.command_line(*more),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**self.environment(), **(env or {})},
                cwd=cwd or self.folder,
                limit=64 * 1024 * 1024,
            )
        made = Client(process)
        self.clients.append(made)
        if opened:
            await made.open()
        return made

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((self.state / "run").glob("*.json"))]

    def gateway(self) -> dict[str, Any]:
        (record,) = self.records()
        return record

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted((self.state / "run").glob("*.log")))

    async def command(self, *words: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "taskgate", *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment(),
            cwd=self.folder,
        )
        out, err = await asyncio.wait_for(process.communicate(), WAIT_S)
        return process.returncode or 0, out.decode(), err.decode()

    async def close(self) -> None:
        for client in self.clients:
            if client.process.returncode is None:
                client.process.kill()
                await client.process.wait()
        for record in self.records():
            end(record["pid"], signal.SIGTERM)
            await gone(record["pid"])


def end(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def alive(pid: int) -> bool:
    """A process that has ended but was not waited for is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int, program: str) -> list[str]:
    """The running children of a process whose command line names a program."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = [Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ") for child in found]
    return [line for line in lines if program in line]


async def gone(pid: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while alive(pid):
            await asyncio.sleep(0.05)


@asynccontextmanager
async def running_setup(
    folder: Path, config: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None
) -> AsyncIterator[Setup]:
    # Folders of tests have long names, but a socket's path must be short.
    runtime = Path(tempfile.mkdtemp(prefix="tg-", dir="/tmp"))
    made = Setup(folder, runtime, dict(env or {}))
    made.write(config or configuration())
    try:
        yield made
    finally:
        await made.close()
        shutil.rmtree(runtime)


def configuration(*, servers: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "servers": dict(servers or {"a": mirror(), "b": mirror()}),
        "scopes": {"default": {"default_servers": ["*"], "helper_tools": "never"}},
        "validate": "off",
        "listen": {"port": 0},
        **more,
    }


def mirror(more: Sequence[str] = (), **settings: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(MIRROR), "stdio", *more], **settings}
