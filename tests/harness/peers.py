"""The real MCP peers by name: how to start each as an upstream, and how to run a script with each as a caller.

The programs are in `tests/peers/`, each run inside the environment that `tools/peers.py` made for it. Expectations are in
the tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from tests.harness.absent import HOME
from tests.harness.forking import FORKING
from tests.harness.node_reuse import NODE_AGAIN
from tests.harness.programs import free_port, listening, run_to_end, running

PROGRAMS = Path(__file__).resolve().parent.parent / "peers"


class Generation(Enum):
    """The generation that a caller uses, or that the gateway is expected to use towards an upstream."""

    STATEFUL = "2025"
    STATELESS = "2026"


@dataclass(frozen=True, slots=True)
class Upstream:
    """A behaviour server: its environment, its program, and the generation that a client of both will use."""

    name: str
    peer: str
    program: str
    supports: Generation
    tasks: bool = False

    def command(self, *arguments: str) -> list[str]:
        return [str(interpreter(self.peer)), str(PROGRAMS / self.program), *arguments]

    def stdio(self) -> dict[str, Any]:
        """The `servers` entry that starts it as a child."""
        program, *arguments = [*FORKING.launched(interpreter(self.peer)), *self.command("--stdio")]
        return {"command": program, "args": arguments}

    @asynccontextmanager
    async def http(self) -> AsyncIterator[str]:
        """Its URL, while it runs."""
        port = free_port()
        async with running(self.command("--http", str(port)), listening(port)):
            yield f"http://127.0.0.1:{port}/mcp"


@dataclass(frozen=True, slots=True)
class Caller:
    """A behaviour client of one SDK in one generation."""

    name: str
    peer: str
    program: str
    generation: Generation
    tasks: bool = False

    async def play(
        self,
        script: Sequence[dict[str, Any]],
        *,
        url: str | None = None,
        command: Sequence[str] | None = None,
        alone: bool = False,
    ) -> list[dict[str, Any]]:
        """Play the script against a URL or a command and return one observation per step. `alone`: nobody answers questions."""
        where = ["--url", url] if url else ["--command", json.dumps(list(command or ()))]
        where += ["--alone"] if alone else []
        words = [*where, "--generation", self.generation.value, json.dumps(list(script))]
        if self.peer.startswith("ts"):
            code, out, err = await NODE_AGAIN.run(PROGRAMS / self.program, words, within=90)
        else:
            code, out, err = await run_to_end([interpreter(self.peer), PROGRAMS / self.program, *words], within=90)
        try:
            observations: list[dict[str, Any]] = json.loads(out.strip().splitlines()[-1])
        except (ValueError, IndexError):
            raise AssertionError(f"{self.name} ended with code {code} and no report:\n{err[-3000:]}") from None
        if self.peer.startswith("ts"):
            for seen in observations:
                seen["drops_late_progress"] = True
        return observations


def interpreter(peer: str) -> Path:
    return HOME / "node" if peer.startswith("ts") else HOME / peer / "bin" / "python"


STATEFUL, STATELESS = Generation.STATEFUL, Generation.STATELESS
UPSTREAMS = (
    Upstream("py130", "mcp130", "behaviour_server_130.py", STATEFUL, tasks=True),
    Upstream("py23", "mcp23", "behaviour_server_23.py", STATELESS),
    Upstream("ts1", "ts1", "behaviour_server_ts1.mjs", STATEFUL, tasks=True),
    Upstream("ts2", "ts2", "behaviour_server_ts2.mjs", STATELESS),
)
CALLERS = (
    Caller("py130", "mcp130", "client_130.py", STATEFUL, tasks=True),
    Caller("py23-2025", "mcp23", "client_23.py", STATEFUL),
    Caller("py23-2026", "mcp23", "client_23.py", STATELESS),
    Caller("ts1", "ts1", "client_ts1.mjs", STATEFUL, tasks=True),
    Caller("ts2-2025", "ts2", "client_ts2.mjs", STATEFUL, tasks=True),
    Caller("ts2-2026", "ts2", "client_ts2.mjs", STATELESS, tasks=True),
)
FASTMCP_CALLERS = (
    Caller("fastmcp-2025", "fastmcp", "client_fastmcp.py", STATEFUL),
    Caller("fastmcp-2026", "fastmcp", "client_fastmcp.py", STATELESS),
)
FASTMCP_TASKS = Upstream("fastmcp", "fastmcp", "tasks_server_fastmcp.py", STATELESS, tasks=True)
MEETING = Upstream("meeting", "mcp130", "meeting_server_130.py", STATEFUL)
ASKING = Upstream("asking", "mcp130", "asking_server_130.py", STATEFUL)
EVERYTHING = Upstream("everything", "mcp23", "everything_server.py", STATELESS, tasks=True)
PYTHON = sys.executable


def every_third(pairings: Iterable[ParameterSet]) -> list[ParameterSet]:
    """All of them. Every third is part of `make test-programs`, the rest is long and runs with `make conversations`."""
    return [
        one if number % 3 == 0 else pytest.param(*one.values, id=one.id, marks=[*one.marks, pytest.mark.long])
        for number, one in enumerate(pairings)
    ]
