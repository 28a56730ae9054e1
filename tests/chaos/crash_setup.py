"""The setup of the crash tests: a ledger, a gateway that may crash, and bare callers of every kind."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.gateway import Gateway
from tests.harness.programs import Program, free_port, listening, start, until_ready

HERE = Path(__file__).resolve().parent
CLASSES = {
    "once": {"class": "once"},
    "read": {"class": "read"},
    "repeatable": {"class": "repeatable"},
    "keyed": {"class": "keyed", "key_argument": "call"},
    "once_task": {"class": "once"},
    "read_task": {"class": "read"},
    "once_ask": {"class": "once"},
    "once_ask_task": {"class": "once"},
}

DISK_FULL = "disk-full"
SESSION_LIMITS = ("sessions", "sessions_per_caller", "anonymous_sessions")


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of a tool, as the upstream wrote it down. `ended` is None while it never ended."""

    tool: str
    call: str
    began: float
    ended: float | None


@dataclass(slots=True)
class LedgerFile:
    path: Path

    def lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def executions(self) -> dict[str, list[Execution]]:
        """Every execution, by the call that it was for."""
        begun: dict[str, dict[str, Any]] = {}
        ended: dict[str, float] = {}
        for line in self.lines():
            if line["what"] == "begin":
                begun[line["number"]] = line
            elif line["what"] == "end":
                ended[line["number"]] = line["at"]
        found: dict[str, list[Execution]] = {}
        for number, line in begun.items():
            run = Execution(line["tool"], line["call"], line["at"], ended.get(number))
            found.setdefault(line["call"], []).append(run)
        return found

    def count(self, call: str) -> int:
        return len(self.executions().get(call, ()))

    def cancels(self) -> int:
        return sum(1 for line in self.lines() if line["what"] == "cancel")


@dataclass(slots=True)
class CrashingGateway(Gateway):
    """A gateway that can be started with a planned crash (`crashing_gateway.py`); without one it is unmodified."""

    fate: str | None = None

    async def start(self) -> None:
        program = ["-m", "taskgate"] if self.fate is None else [str(HERE / "crashing_gateway.py"), self.fate]
        command: list[str | Path] = [sys.executable, *program, "serve", "-c", self.config]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        env = {"TASKGATE_STATE_DIR": str(self.state), **self.env}
        self.program = await start(command, env, self.folder / "gateway.log")
        await until_ready(self.program, self.is_ready)

    async def crashed(self) -> None:
        """Wait until it has ended itself."""
        assert self.program is not None
        await self.program.process.wait()

    async def start_again(self, fate: str | None = None) -> None:
        self.fate = fate
        await self.start()


@dataclass(slots=True)
class Setup:
    gateway: CrashingGateway
    ledger: LedgerFile
    upstream: Program
    port: int

    async def replace_upstream(self, kind: str) -> None:
        """Another program takes the upstream's place."""
        await self.upstream.end()
        self.upstream = await start(upstream_command(self.port, self.ledger, kind))
        await until_ready(self.upstream, listening(self.port))


def upstream_command(port: int, ledger: LedgerFile, kind: str) -> list[str | Path]:
    return [sys.executable, HERE / "ledger_server.py", str(port), ledger.path, kind]


def configuration(port: int, **tasks: Any) -> dict[str, Any]:
    """Short waits, so that every delivery mode is reached within a test. The load opens a session for each call and ends
    none, to have as many callers as possible.
    """
    return {
        "schema": 1,
        "servers": {"books": {"url": f"http://127.0.0.1:{port}/mcp", "tools": CLASSES}},
        "tasks": {"grace_ms": 150, "promote_after_ms": 150, "poll_interval_ms": 100, **tasks},
        "limits": {"open_tasks_per_caller": 5000, "drain_timeout": "2s", **dict.fromkeys(SESSION_LIMITS, 100_000)},
    }


@asynccontextmanager
async def running_setup(
    folder: Path,
    fate: str | None = None,
    generation: str = "2025",
    more: dict[str, Any] | Callable[[int], dict[str, Any]] | None = None,
) -> AsyncIterator[Setup]:
    """An upstream with a ledger and a gateway in front of it, each in its own process.

    `more` changes the configuration; it may be a function of the upstream's port.
    """
    port, ledger = free_port(), LedgerFile(folder / "ledger.jsonl")
    upstream = await start(upstream_command(port, ledger, generation))
    gateway = CrashingGateway(folder, free_port(), fate=fate)
    setup = Setup(gateway, ledger, upstream, port)
    gateway.state.mkdir(exist_ok=True)
    gateway.write({**configuration(port), **(more(port) if callable(more) else more or {})})
    try:
        await until_ready(upstream, listening(port))
        await gateway.start()
        yield setup
    finally:
        if gateway.program is not None and gateway.program.alive:
            await gateway.program.end(signal.SIGTERM, within=10)
        await setup.upstream.end()
