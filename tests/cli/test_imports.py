"""Modules that a command must not import. They are facts about the program; the time they cost depends on the machine."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.gateway import running_gateway
from tests.harness.programs import free_port
from tests.harness.raw_client import RawClient

DEADLINE_S = 120
PROBE = """
import sys, json, atexit
atexit.register(lambda: print("MODULES " + json.dumps(sorted(sys.modules)), file=sys.stderr))
sys.argv = ["taskgate", *sys.argv[1:]]
from taskgate.cli.main import main
main()
"""
GATEWAY = {"taskgate.gateway", "taskgate.assembly", "taskgate.store", "taskgate.config", "taskgate.dashboard"}
LIBRARIES = {
    "httpx2",
    "jinja2",
    "joserfc",
    "jsonschema_rs",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "rapidfuzz",
    "rich",
    "uvicorn",
    "uvloop",
    "watchfiles",
    "yaml",
}
NOT_FOR_A_FIRST_ANSWER = {
    "csv",
    "difflib",
    "gzip",
    "html",
    "http.cookies",
    "taskgate.assembly.console_configuration",
    "taskgate.dashboard",
    "mcp",
    "cedarpy",
    "httpx2",
    "jinja2",
    "joserfc",
    "jsonschema_rs",
    "opentelemetry.trace",
    "prometheus_client",
    "psycopg",
    "pydantic",
    "rapidfuzz",
    "rich",
    "slack_sdk",
    "tomlkit",
    "tomllib",
    "zipfile",
}
EVENT_LOOP = {"asyncio", "taskgate.client", "httptools"}

pytestmark = pytest.mark.fresh_interpreter


def imported(*arguments: str, env: dict[str, str] | None = None) -> set[str]:
    """Return the modules that a command has imported when it ends, and their packages."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    return modules_in(done.stderr)


def modules_in(errors: str) -> set[str]:
    line = next(line for line in errors.splitlines() if line.startswith("MODULES "))
    names: list[str] = json.loads(line.removeprefix("MODULES "))
    return {".".join(parts[:count]) for name in names for parts in [name.split(".")] for count in (1, 2, len(parts))}


def test_version_imports_no_command_line_library() -> None:
    assert not imported("--version") & {*GATEWAY, *LIBRARIES, *EVENT_LOOP, "click", "pathlib", "dataclasses"}


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], [], ["tasks", "--help"], ["serve", "--help"]], ids=" ".join)
def test_help_imports_no_event_loop_and_no_gateway(arguments: list[str]) -> None:
    assert not imported(*arguments) & {*GATEWAY, *LIBRARIES, *EVENT_LOOP}


def test_help_imports_no_command() -> None:
    expected = {"main", "root", "command_line", "command_table", "exit_codes"}
    commands = {name.removeprefix("taskgate.cli.") for name in imported("--help") if name.startswith("taskgate.cli.")}
    assert commands == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["tools"],
        ["approvals", "list"],
        ["questions", "list"],
        ["pins", "list"],
        ["status"],
        ["usage"],
        ["servers", "status"],
    ],
    ids=" ".join,
)
def test_commands_for_a_running_gateway_do_not_import_it(arguments: list[str], tmp_path: Path) -> None:
    """No gateway runs here, so each command fails to connect; its imports are complete by then."""
    state = {"TASKGATE_STATE_DIR": str(tmp_path), "HOME": str(tmp_path), "TASKGATE_URL": "http://127.0.0.1:1"}
    assert not imported(*arguments, env=state) & {*GATEWAY, *LIBRARIES}


async def test_listing_all_tasks_imports_no_event_loop(tmp_path: Path) -> None:
    async with running_gateway({"schema": 1, "servers": {}}, tmp_path) as gateway:
        state = {"TASKGATE_STATE_DIR": str(gateway.state), "TASKGATE_URL": gateway.base}
        assert not imported("tasks", "list", env=state) & {*GATEWAY, *LIBRARIES, *EVENT_LOOP}


def test_completion_of_a_command_imports_only_that_command() -> None:
    env = {"_TASKGATE_COMPLETE": "bash_complete", "COMP_WORDS": "taskgate tasks l", "COMP_CWORD": "2"}
    assert not imported(env=env) & {*GATEWAY, *LIBRARIES, *EVENT_LOOP, "taskgate.cli.serve"}


async def test_gateway_answers_before_it_imports_what_few_requests_need(tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "taskgate.yaml"
    file.write_text(json.dumps({"schema": 1, "servers": {}, "listen": {"port": port}}))
    gateway = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROBE, "serve", "-c", str(file)),
        env={**os.environ, "TASKGATE_STATE_DIR": str(tmp_path / "state"), "HOME": str(tmp_path)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE_S):
        await until_open(port)
        async with RawClient(f"http://127.0.0.1:{port}/mcp") as caller:
            await caller.open()
        gateway.terminate()
        _, errors = await gateway.communicate()
    found = modules_in(errors.decode()) & NOT_FOR_A_FIRST_ANSWER
    assert found == set()


async def until_open(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
