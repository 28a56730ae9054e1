"""An unresponsive stdio server is killed with all its child processes and restarted."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from taskgate.core.errors import TaskgateError
from taskgate.core.events import EventKind
from taskgate.core.generations.generation import Generation
from taskgate.core.questions.question import Answer, Question, not_supported
from taskgate.core.wire import Raw
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.stdio.reaper import Reaper
from taskgate.ports.client_profile import ClientProfile
from taskgate.ports.link import Link, LinkKey
from taskgate.ports.upstream_call import UpstreamCall
from taskgate.upstreams import health_watch
from taskgate.upstreams.server import Server
from taskgate.upstreams.spec import ServerSpec, Transport

# Answers the handshake, starts a helper that would outlive it, writes both process ids to a file, then never writes again.
HANGS = """
import json, os, subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
opening = json.loads(sys.stdin.readline())
result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "hangs", "version": "1"}}
print(json.dumps({"jsonrpc": "2.0", "id": opening["id"], "result": result}), flush=True)
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()} {helper.pid}\\n")
time.sleep(600)
"""


class Received:
    """Records the events about the server."""

    def __init__(self) -> None:
        self.kinds: list[EventKind] = []
        self.ended: list[tuple[str, str]] = []
        """Version and error type of each session that ended."""

    def on_notification(self, link: Link, method: str, params: Raw | None) -> None: ...

    async def on_question(self, link: Link, question: Question, calls: Sequence[UpstreamCall]) -> Answer:
        return not_supported(question.method)

    def on_closed(self, link: Link, reason: TaskgateError | None) -> None: ...

    def on_session_ended(self, server: str, version: str, seconds: float, error_type: str) -> None:
        assert seconds >= 0
        self.ended.append((version, error_type))

    def on_server(self, server: str, kind: EventKind, data: Mapping[str, Any], key: LinkKey | None = None) -> None:
        self.kinds.append(kind)


def runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at processes through /proc")
async def test_unresponsive_child_is_restarted_and_its_helpers_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EVERY_S", "WHEN_DEGRADED_S", "PING_TIMEOUT_S"):
        monkeypatch.setattr(health_watch, name, 0.05)
    received, messages = tmp_path / "pids", Received()
    received.touch()
    spec = ServerSpec(
        id="hangs",
        transport=Transport.STDIO,
        hide=str,
        sent_secrets=frozenset(),
        command=sys.executable,
        args=("-c", HANGS, str(received)),
    )
    reaper, http = Reaper(), HttpClient()
    server = Server(spec, messages, http, reaper)
    try:
        async with asyncio.timeout(60):
            await server.link(LinkKey(Generation.STATEFUL, "ann"), ClientProfile({}))
            while len(received.read_text().splitlines()) < 2:
                await asyncio.sleep(0.05)
            first = [int(pid) for pid in received.read_text().splitlines()[0].split()]
            while any(runs(pid) for pid in first):
                await asyncio.sleep(0.05)
        assert EventKind.SERVER_PROCESS_CRASHED in messages.kinds
    finally:
        await server.close()
        await reaper.close()
        await http.close()


EXITS = """
import json, sys
opening = json.loads(sys.stdin.readline())
result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "exits", "version": "1"}}
print(json.dumps({"jsonrpc": "2.0", "id": opening["id"], "result": result}), flush=True)
sys.stdin.readline()
sys.exit(3)
"""


@pytest.mark.parametrize(("program", "error_type"), [(EXITS, "upstream_unreachable"), (HANGS, "")])
async def test_end_of_a_session_is_reported_with_its_reason(tmp_path: Path, program: str, error_type: str) -> None:
    messages, reaper, http = Received(), Reaper(), HttpClient()
    args = ("-c", program, str(tmp_path / "pids"))
    spec = ServerSpec(
        id="ends",
        transport=Transport.STDIO,
        hide=str,
        sent_secrets=frozenset(),
        command=sys.executable,
        args=args,
    )
    server = Server(spec, messages, http, reaper)
    try:
        async with asyncio.timeout(60):
            await server.link(LinkKey(Generation.STATEFUL, "ann"), ClientProfile({}))
            while error_type and not messages.ended:
                await asyncio.sleep(0.05)
    finally:
        await server.close()
        await reaper.close()
        await http.close()
    assert messages.ended[0] == ("2025-11-25", error_type)
