"""Modules that a command must not import. They are facts about the program; the time they cost depends on the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.gateway import running_gateway

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
EVENT_LOOP = {"asyncio", "taskgate.client", "msgspec", "httptools"}

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
    line = next(line for line in done.stderr.splitlines() if line.startswith("MODULES "))
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
