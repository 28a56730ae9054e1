"""From nothing to a file that serves: `taskgate init`, the schema for editors, and completion in three shells."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from taskgate.cli.exit_codes import ExitCode
from taskgate.config import load_text

TIMEOUT_S = 120.0
CURSOR = {"mcpServers": {"notes": {"command": "echo", "args": ["x"]}}}


def variables(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TASKGATE_", "XDG_"))}
    return {**kept, "HOME": str(home), "COLUMNS": "120"}


def taskgate(home: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "taskgate", *words],
        cwd=home, env=variables(home), capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout


def answered(home: Path, answers: str, *words: str) -> str:
    """The command at a terminal, with what a person types."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "taskgate", *words],
        cwd=home, env=variables(home), stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, answers.encode())
    output, _ = process.communicate(timeout=TIMEOUT_S)
    os.close(ours)
    assert process.returncode == 0, output
    return output


def with_cursor(home: Path) -> Path:
    settings = home / ".cursor" / "mcp.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps(CURSOR))
    return settings


def named_schema(file: Path) -> str:
    """The schema that the first line of the file names for editors."""
    return file.read_text().splitlines()[0].partition("$schema=")[2]


def test_without_any_client_a_demo_server_is_served(tmp_path: Path) -> None:
    assert "taskgate serve" in taskgate(tmp_path, "init", "--yes")
    assert list(load_text((tmp_path / "taskgate.yaml").read_text(), environment={}).root.servers) == ["files"]
    assert "Configuration valid" in taskgate(tmp_path, "check")
    assert (tmp_path / named_schema(tmp_path / "taskgate.yaml")).read_text() == taskgate(tmp_path, "schema")


def test_demo_server_starts_although_python_on_the_path_lacks_taskgate(tmp_path: Path) -> None:
    """As after an installation with pipx, where only `taskgate` itself is on the path."""
    other = tmp_path / "bin" / "python"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S "$@"\n')
    other.chmod(0o755)
    environment = {**variables(tmp_path), "PATH": f"{other.parent}:{os.environ['PATH']}"}
    lacks = subprocess.run(["python", "-c", "import taskgate"], env=environment, capture_output=True, check=False)
    assert b"ModuleNotFoundError" in lacks.stderr
    taskgate(tmp_path, "init", "--yes")
    done = subprocess.run(
        [sys.executable, "-m", "taskgate", "doctor", "--json"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    found = {finding["about"]: finding for finding in map(json.loads, done.stdout.splitlines())}
    assert found["server files"]["verdict"] == "ok", found["server files"]


def test_servers_of_clients_are_found_and_printed_as_json(tmp_path: Path) -> None:
    settings = with_cursor(tmp_path)
    before = settings.read_text()
    answer = json.loads(taskgate(tmp_path, "init", "--json"))
    assert (answer["servers"], answer["clients"]) == (["notes"], ["cursor"])
    assert settings.read_text() == before
    assert "Configuration valid" in taskgate(tmp_path, "check")


def test_setup_with_three_answers_writes_rules_and_installs_the_gateway(tmp_path: Path) -> None:
    settings = with_cursor(tmp_path)
    output = answered(tmp_path, "y\ny\ny\n", "init")
    assert [f"{number}." in output for number in (1, 2, 3)] == [True] * 3
    root = load_text((tmp_path / "taskgate.yaml").read_text(), environment={}).root
    assert list(root.servers) == ["notes"]
    assert {rule.action for rule in root.governance.rules} == {"approve"}
    assert list(json.loads(settings.read_text())["mcpServers"]) == ["taskgate"]


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "taskgate.yaml").write_text("schema: 1\n")
    taskgate(tmp_path, "init", "--yes", code=ExitCode.USAGE)
    assert (tmp_path / "taskgate.yaml").read_text() == "schema: 1\n"


def test_the_schema_is_printed_as_json(tmp_path: Path) -> None:
    assert "servers" in json.loads(taskgate(tmp_path, "schema"))["properties"]


@pytest.mark.parametrize(
    ("shell", "asked"),
    [
        ("bash", {"COMP_WORDS": "taskgate ser", "COMP_CWORD": "1"}),
        ("zsh", {"COMP_WORDS": "taskgate ser", "COMP_CWORD": "1"}),
        ("fish", {"COMP_WORDS": "taskgate ser", "COMP_CWORD": "ser"}),
    ],
)
def test_shell_completion_completes_commands_and_values(tmp_path: Path, shell: str, asked: dict[str, str]) -> None:
    assert "_TASKGATE_COMPLETE" in taskgate(tmp_path, "completion", shell)
    program = tmp_path / "run.py"
    program.write_text("import sys; sys.argv = ['taskgate']; from taskgate.cli.main import main; main()")
    environment = {**variables(tmp_path), "_TASKGATE_COMPLETE": f"{shell}_complete", **asked}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert "serve" in done.stdout
