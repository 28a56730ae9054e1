"""The servers the client is tested against: real programs in other processes, each started once and shared by this folder.

A test names the environments it needs with `pytest.mark.peers`; tests of absent ones are skipped and reported at the end.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.harness.programs import die_with_parent

from taskgate.client import Session, connect

ROOT = Path(__file__).resolve().parents[2]
PEERS, SERVERS, OWN = ROOT / ".peers", ROOT / "tests" / "peers", Path(__file__).parent / "servers"
START_SECONDS = 150


def python_of(environment: str) -> str:
    return str(PEERS / environment / "bin" / "python")


def node() -> str:
    own = PEERS / "node"
    return str(own) if own.exists() else shutil.which("node") or "node"


@dataclass(frozen=True)
class Peer:
    """One server program, how it is reached and what is expected of it."""

    name: str
    environment: str
    command: tuple[str, ...]
    transport: str = "http"
    generation: str | None = None
    tasks: bool = False
    makes_tasks_when_asked: bool = True

    @property
    def expected(self) -> str:
        return self.generation or ("stateful" if self.environment in ("mcp130", "ts1") else "stateless")


def _python(environment: str, script: str) -> tuple[str, ...]:
    return (python_of(environment), str(SERVERS / script))


def _node(script: str) -> tuple[str, ...]:
    return (node(), str(SERVERS / script))


def _gateway(environment: str, script: str, *, grace_ms: int) -> tuple[str, ...]:
    return (sys.executable, str(OWN / "gateway_server.py"), str(grace_ms), *_python(environment, script))


# Calls whose progress is looked at must not become tasks because a program was late.
_PATIENT_GATEWAY = _gateway("mcp130", "behaviour_server_130.py", grace_ms=60_000)


BEHAVIOUR = [
    Peer("mcp130-http", "mcp130", _python("mcp130", "behaviour_server_130.py"), tasks=True),
    Peer("mcp130-stdio", "mcp130", _python("mcp130", "behaviour_server_130.py"), "stdio", tasks=True),
    Peer("ts1-http", "ts1", _node("behaviour_server_ts1.mjs"), tasks=True),
    Peer("ts1-stdio", "ts1", _node("behaviour_server_ts1.mjs"), "stdio", tasks=True),
    Peer("mcp23-http-2026", "mcp23", _python("mcp23", "behaviour_server_23.py")),
    Peer("mcp23-http-2025", "mcp23", _python("mcp23", "behaviour_server_23.py"), generation="stateful"),
    Peer("mcp23-stdio-2026", "mcp23", _python("mcp23", "behaviour_server_23.py"), "stdio"),
    Peer("ts2-http", "ts2", _node("behaviour_server_ts2.mjs")),
    Peer("gateway-2025", "mcp130", _PATIENT_GATEWAY, generation="stateful", tasks=True),
    Peer(
        "gateway-2026",
        "mcp130",
        _PATIENT_GATEWAY,
        generation="stateless",
        tasks=True,
        makes_tasks_when_asked=False,
    ),
    Peer("ts2-stdio", "ts2", _node("behaviour_server_ts2.mjs"), "stdio"),
]
EXTENSION = [
    Peer("everything-2026", "mcp23", _python("mcp23", "everything_server.py")),
    Peer("fastmcp-tasks", "fastmcp", (python_of("fastmcp"), str(OWN / "fastmcp_tasks_server.py"))),
]
# A stateless gateway answers what is quick without a task, so it has tests of its own.
_TASK_PEERS = [peer for peer in BEHAVIOUR if peer.tasks and peer.makes_tasks_when_asked]
STDIO_TOO = {
    "test_the_newest_generation_of_the_server_is_chosen",
    "test_a_call_returns_what_the_tool_returned",
    "test_questions_are_answered_by_the_callbacks",
    "test_updates_of_a_resource_and_of_a_list_are_delivered",
    "test_a_task_is_followed_to_its_result",
    "test_a_question_of_a_task_is_answered_by_the_callback",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every behaviour runs over HTTP; starting a program for each test is expensive, so only some run over stdio too."""
    for fixture, peers in (("behaviour_peer", BEHAVIOUR), ("task_peer", _TASK_PEERS)):
        if fixture in metafunc.fixturenames:
            wanted = [peer for peer in peers if peer.transport == "http" or metafunc.function.__name__ in STDIO_TOO]
            marked = [pytest.param(peer, id=peer.name, marks=pytest.mark.peers(peer.environment)) for peer in wanted]
            metafunc.parametrize(fixture, marked)


class Servers:
    """HTTP servers by command, started on first use."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, ...], tuple[subprocess.Popen[bytes], str]] = {}

    def url(self, command: tuple[str, ...]) -> str:
        if command not in self._running:
            self._running[command] = self._start(command)
        return self._running[command][1]

    def _start(self, command: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the server
        process = subprocess.Popen(
            [*command, "--http", str(port)],
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return process, f"http://127.0.0.1:{port}/mcp"
            time.sleep(0.02)
        log.seek(0)
        raise RuntimeError(f"{command} did not start:\n{log.read()[-3000:].decode(errors='replace')}")

    def close(self) -> None:
        for process, _ in self._running.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


@pytest.fixture(scope="package")
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.close()


Opener = Callable[..., AbstractAsyncContextManager[Session]]


@pytest.fixture
def opened(servers: Servers) -> Opener:
    """`async with opened(peer, **settings) as session`."""

    @asynccontextmanager
    async def open_peer(peer: Peer, **settings: Any) -> AsyncIterator[Session]:
        target = servers.url(peer.command) if peer.transport == "http" else [*peer.command, "--stdio"]
        times = dict.fromkeys(("request_timeout", "call_timeout", "probe_timeout", "connect_timeout"), 120.0)
        settings = {"generation": peer.generation, **times} | settings
        async with connect(target, **settings) as session:
            yield session

    return open_peer


@pytest.fixture
def mcp130() -> Peer:
    return BEHAVIOUR[0]


@pytest.fixture
def everything(servers: Servers) -> str:
    return servers.url(EXTENSION[0].command)


@pytest.fixture
def fastmcp_tasks(servers: Servers) -> str:
    return servers.url(EXTENSION[1].command)


@pytest.fixture
def gateway(servers: Servers) -> str:
    return servers.url(_gateway("mcp130", "behaviour_server_130.py", grace_ms=300))


@pytest.fixture
def faulty(servers: Servers) -> str:
    """A hand-written server that breaks the rules on purpose."""
    return servers.url((sys.executable, str(OWN / "faulty_server.py")))


@pytest.fixture
def faulty_command() -> list[str]:
    return [sys.executable, str(OWN / "faulty_server.py"), "--stdio"]
