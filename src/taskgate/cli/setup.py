"""`taskgate init`, `schema`, `completion` and `demo`: from nothing to a gateway that runs."""

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
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taskgate import clock
from taskgate.atomic_files import create_file
from taskgate.cli.gateways import GatewayApi
from taskgate.cli.install import chosen_clients, install, stop, write_config
from taskgate.cli.main import COMPLETE_VARIABLE
from taskgate.cli.say import ExitCode
from taskgate.cli.target import Json

if TYPE_CHECKING:
    from taskgate.client import Question, Session, ToolResult
    from taskgate.config.clients.found_servers import Gathered
    from taskgate.config.clients.import_plan import ImportPlan

_HEAD = """\
{comment}
# Made by `taskgate init`. Every key is explained in docs/configuration.md; `taskgate check` says whether the file is right.
schema: 1
"""
_DEMO = """\
servers:
  files: {command: python, args: ["-m", "taskgate.demo.files"]}
"""
_CHANGING = ("*delete*", "*remove*", "*drop*", "*write*", "*send*")
_ASK_FIRST = f"""\
governance:
  rules:
{"".join(f'    - {{match: "{pattern}", action: approve, approval: people}}' + chr(10) for pattern in _CHANGING)}approval:
  people: {{channels: [inbox], timeout: 10m}}
"""


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


FilePath = Annotated[Path, typer.Option("--config", "-c", help="File to make.")]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Ask nothing: take all servers, hold nothing back, leave the clients alone.")
]


def register_setup(app: typer.Typer) -> None:
    """Put the commands on the application."""
    app.command("init")(init)
    app.command("schema")(schema)
    app.command("completion")(completion)


def init(config: FilePath = Path("taskgate.yaml"), yes: Yes = False, as_json: Json = False) -> None:
    """Make a taskgate.yaml: finds the clients on this machine and asks three questions."""
    if config.exists():
        raise stop(f"{config} is there already; `taskgate import` adds servers to it, `taskgate check` reads it")
    asks = not yes and not as_json and sys.stdin.isatty()
    gathered = _found()
    if gathered.found and asks and not typer.confirm(_first_question(gathered), default=True):
        gathered.found.clear()
    text = _starting_text(
        ask_first=asks
        and typer.confirm("2. Hold tools that delete, write or send until a person approves?", default=True),
        demo=not gathered.found,
    )
    plan = _plan(gathered, text, config)
    write_config(config, plan)
    _write_schema(config.parent)
    clients = sorted({item.client for item in plan.added.values()})
    chosen = clients if clients and asks and typer.confirm(_third_question(clients), default=False) else []
    if as_json:
        typer.echo(json.dumps({"file": str(config), "servers": sorted(_servers(plan)), "clients": clients}))
        return
    typer.echo(f"Wrote {config} with {', '.join(sorted(_servers(plan)))}.")
    for name in chosen:
        install(client=name, config=config)
    typer.echo(f"Next: taskgate check -c {config}, then taskgate serve -c {config}")


def schema() -> None:
    """Print the JSON schema of a configuration file, for editors."""
    typer.echo(_schema_text(), nl=False)


def completion(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print a script that completes taskgate's words in your shell: `eval "$(taskgate completion bash)"`."""
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="taskgate", complete_var=COMPLETE_VARIABLE, shell=shell.value))


def _schema_text() -> str:
    from taskgate.config.json_schema import configuration_schema

    return json.dumps(configuration_schema(), indent=2) + "\n"


def _write_schema(folder: Path) -> None:
    """Beside the file, whose first line names it to editors; one that is there may be a person's own."""
    from taskgate.config.json_schema import SCHEMA_FILE

    with suppress(FileExistsError):
        create_file(folder / SCHEMA_FILE, _schema_text().encode(), 0o644)


def _found() -> Gathered:
    from taskgate.config.clients.client import Host
    from taskgate.config.clients.found_servers import gather

    gathered = gather(chosen_clients(None), Host.here())
    for note in gathered.notes:
        typer.echo(f"note: {note}", err=True)
    return gathered


def _first_question(gathered: Gathered) -> str:
    names = ", ".join(f"{item.name} ({item.client})" for item in gathered.found)
    return f"1. These servers were found: {names}. Take them into the file?"


def _third_question(clients: list[str]) -> str:
    return f"3. Put Taskgate in front of {', '.join(clients)} now? (`taskgate install NAME --undo` takes it back)"


def _starting_text(*, ask_first: bool, demo: bool) -> str:
    from taskgate.config.json_schema import EDITOR_COMMENT

    return _HEAD.format(comment=EDITOR_COMMENT) + (_ASK_FIRST if ask_first else "") + (_DEMO if demo else "")


def _plan(gathered: Gathered, text: str, config: Path) -> ImportPlan:
    from taskgate.config.clients.import_plan import CannotImport, ImportPlan, plan_import

    if not gathered.found:
        return ImportPlan("", text, text, {})
    try:
        return plan_import(gathered.found, text, str(config))
    except CannotImport as error:
        raise stop(str(error)) from None


def _servers(plan: ImportPlan) -> list[str]:
    return list(plan.added) or ["the demo server"]


# `taskgate demo`: a gateway and a demo server on free ports, and the four things that Taskgate is for, told as they
# happen.

READY_S = 30.0
CONFIGURATION = """\
schema: 1
servers:
  demo: {{command: {python}, args: ["-m", "taskgate.demo.files"]}}
governance:
  rules:
    - {{match: "delete_*", action: approve}}
tasks: {{promote_after_ms: 1500, execute_on: approval}}
"""


def register_demo(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo() -> None:
    """Start a gateway with its demo server, show what it does in four small scenes, and clean up."""
    with tempfile.TemporaryDirectory(prefix="taskgate-demo-") as folder, _gateway(Path(folder)) as address:
        try:
            asyncio.run(_scenes(address))
        except Exception as problem:  # one whole command: a newcomer gets a sentence, not a traceback
            print(f"The demo did not go as planned: {problem}", file=sys.stderr)
            raise typer.Exit(ExitCode.FAILED) from None
    print("\nThat was all. `taskgate serve` keeps such a gateway running; the README shows what comes next.")


@contextmanager
def _gateway(folder: Path) -> Iterator[str]:
    """A gateway of its own, with its own state, gone afterwards."""
    port = _free_port()
    config = folder / "taskgate.yaml"
    config.write_text(CONFIGURATION.format(python=sys.executable))
    environment = {**os.environ, "TASKGATE_STATE_DIR": str(folder / "state")}
    os.environ["TASKGATE_STATE_DIR"] = environment["TASKGATE_STATE_DIR"]
    command = [sys.executable, "-m", "taskgate", "serve", "-c", str(config), "--port", str(port)]
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
    raise typer.Exit(ExitCode.CANNOT_CONNECT)


async def _scenes(address: str) -> None:
    from taskgate.client import connect

    async with connect(f"{address}/mcp", elicitation=_answer, generation="stateful") as session:
        await _fast(session)
        await _slow(session)
        await _approved(session, address)
        await _asked(session)


def _scene(number: int, title: str) -> None:
    print(f"\n{number}. {title}")


def _say(text: str) -> None:
    print(f"   {text}")


async def _fast(session: Session) -> None:
    _scene(1, "A fast call passes straight through")
    began = clock.monotonic()
    result = await session.call_tool("demo__list_files", {})
    _say(f"demo__list_files answered in {(clock.monotonic() - began) * 1000:.0f} ms: {_text(result)!r}")


async def _slow(session: Session) -> None:
    _scene(2, "A slow call becomes a task")
    handle = await session.call_tool_as_task("demo__slow_report", {"seconds": 3}, ttl=60_000)
    _say(f"demo__slow_report is now task {handle.task_id}; the caller is free to do other things")
    async for update in handle.updates():
        if update.message:
            _say(f"  {update.status}: {update.message}")
    _say(f"result: {_text(await handle.result())!r}")


async def _approved(session: Session, address: str) -> None:
    _scene(3, "A dangerous call waits for a person")
    handle = await session.call_tool_as_task("demo__delete_file", {"name": "old.log"})
    _say("demo__delete_file was not sent: a rule says that someone must agree first")
    api = GatewayApi(address, None)
    waiting = await asyncio.to_thread(api.get, "/api/approvals")
    approval = waiting.value[0]
    _say(f"the operator sees {approval['id']} in the inbox and approves it")
    await asyncio.to_thread(api.post, f"/api/approvals/{approval['id']}/approve", {})
    _say(f"result: {_text(await handle.result(timeout=30))!r}")


async def _asked(session: Session) -> None:
    _scene(4, "A server asks a question in the middle of a call")
    result = await session.call_tool("demo__greet", {})
    _say(f"result: {_text(result)!r}")


async def _answer(question: Question) -> dict[str, object]:
    _say(f"the server asks: {question.message!r}; we answer 'Ada'")
    return {"action": "accept", "content": {"name": "Ada"}}


def _text(result: ToolResult) -> str:
    content = result.content
    return " ".join(block.get("text", "") for block in content)


def register(app: typer.Typer) -> None:
    register_setup(app)
    register_demo(app)
