"""`taskgate demo`: start a gateway with the demo server on free ports, and show its four main features."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from taskgate import clock
from taskgate.cli.command_line import Commands, Exit
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.gateway_api import GatewayApi
from taskgate.own_programs import own_program

if TYPE_CHECKING:
    from taskgate.client import Question, Session, ToolResult


READY_S = 30.0
CONFIGURATION = """\
schema: 1
servers:
  demo: {{command: {python}, args: ["-P", "-m", "taskgate.demo.files"]}}
governance:
  rules:
    - {{match: "delete_*", action: approve}}
tasks: {{promote_after_ms: 1500, execute_on: approval}}
"""


def register(app: Commands) -> None:
    app.command("demo")(demo)


def demo() -> None:
    """Start a gateway with a demo server, show four features, and stop it again."""
    with tempfile.TemporaryDirectory(prefix="taskgate-demo-") as folder, _gateway(Path(folder)) as address:
        try:
            asyncio.run(_scenes(address))
        except Exception as problem:  # around a whole command: print a sentence, not a traceback
            print(f"The demo failed: {problem}", file=sys.stderr)
            raise Exit(ExitCode.FAILED) from None
    print("\nDemo finished. Next: `taskgate init` creates a configuration, `taskgate serve` runs the gateway.")


@contextmanager
def _gateway(folder: Path) -> Iterator[str]:
    """Run a gateway with a temporary state folder, and stop it afterwards."""
    port = _free_port()
    config = folder / "taskgate.yaml"
    config.write_text(CONFIGURATION.format(python=json.dumps(sys.executable, ensure_ascii=False)))
    environment = {**os.environ, "TASKGATE_STATE_DIR": str(folder / "state")}
    os.environ["TASKGATE_STATE_DIR"] = environment["TASKGATE_STATE_DIR"]
    command = [*own_program(), "serve", "-c", str(config), "--port", str(port)]
    with (folder / "gateway.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        _wait_until_ready(port, process, folder / "gateway.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = clock.monotonic() + READY_S
    while clock.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    print(log.read_text(errors="replace"), file=sys.stderr)
    raise Exit(ExitCode.CANNOT_CONNECT)


async def _scenes(address: str) -> None:
    from taskgate.client import connect

    async with connect(f"{address}/mcp", elicitation=_answer, generation="stateful") as session:
        await _fast(session)
        await _slow(session)
        await _approved(session, address)
        await _question(session)


def _scene(number: int, title: str) -> None:
    print(f"\n{number}. {title}")


def _print_line(text: str) -> None:
    print(f"   {text}")


async def _fast(session: Session) -> None:
    _scene(1, "A fast call is forwarded")
    began = clock.monotonic()
    result = await session.call_tool("demo__list_files", {})
    _print_line(f"demo__list_files returned in {(clock.monotonic() - began) * 1000:.0f} ms: {_text(result)!r}")


async def _slow(session: Session) -> None:
    _scene(2, "A slow call becomes a task")
    handle = await session.call_tool_as_task("demo__slow_report", {"seconds": 3}, ttl=60_000)
    _print_line(f"demo__slow_report runs as task {handle.task_id}; the caller does not have to wait")
    async for update in handle.updates():
        if update.message:
            _print_line(f"  {update.status}: {update.message}")
    _print_line(f"result: {_text(await handle.result())!r}")


async def _approved(session: Session, address: str) -> None:
    _scene(3, "A risky call waits for approval")
    handle = await session.call_tool_as_task("demo__delete_file", {"name": "old.log"})
    _print_line("demo__delete_file was not sent: a rule requires approval")
    api = GatewayApi(address, None)
    waiting = await asyncio.to_thread(api.get, "/api/approvals")
    approval = waiting.value[0]
    _print_line(f"the operator approves {approval['id']}")
    await asyncio.to_thread(api.post, f"/api/approvals/{approval['id']}/approve", {})
    _print_line(f"result: {_text(await handle.result(timeout=30))!r}")


async def _question(session: Session) -> None:
    _scene(4, "A server asks a question during a call")
    result = await session.call_tool("demo__greet", {})
    _print_line(f"result: {_text(result)!r}")


async def _answer(question: Question) -> dict[str, object]:
    _print_line(f"question from the server: {question.message!r}; the answer is 'Ada'")
    return {"action": "accept", "content": {"name": "Ada"}}


def _text(result: ToolResult) -> str:
    content = result.content
    return " ".join(block.get("text", "") for block in content)
