"""`taskgate import`, `install` and `wrap` as real processes around a stand-in agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

DEADLINE_S = 120
AGENT = """
import json, os, pathlib, sys, time
settings = pathlib.Path.home() / ".cursor" / "mcp.json"
seen = json.loads(settings.read_text().replace("// mine", ""))
gateway = seen["mcpServers"]["taskgate"]
config = gateway["args"][gateway["args"].index("-c") + 1]
report = {"servers": list(seen["mcpServers"]), "config": pathlib.Path(config).read_text(), "args": sys.argv[1:]}
out = pathlib.Path(os.environ["REPORT"])
out.with_suffix(".part").write_text(json.dumps(report))
out.with_suffix(".part").rename(out)
if "wait" in sys.argv:
    time.sleep(60)
sys.exit(7)
"""


class Setup:
    """A home folder with Cursor's settings, and a program in place of its agent."""

    def __init__(self, folder: Path) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        self.home, self.work = folder / "home", folder / "work"
        self.config = self.home / ".config" / "taskgate" / "taskgate.yaml"
        self.settings = self.home / ".cursor" / "mcp.json"
        self.settings.parent.mkdir(parents=True)
        self.work.mkdir()
        self.before = '{\n  // mine\n  "mcpServers": {"a": {"command": "x", "env": {"K": "hunter2"}}}\n}\n'
        self.settings.write_text(self.before)
        self.agent = folder / "bin" / "cursor-agent"
        self.agent.parent.mkdir()
        self.agent.write_text(f"#!{sys.executable}\n{textwrap.dedent(AGENT)}")
        self.agent.chmod(0o755)
        self.report = folder / "report.json"
        kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG") if name in os.environ}
        self.environment = {
            **kept,
            "HOME": str(self.home),
            "PATH": f"{self.agent.parent}:{os.environ['PATH']}",
            "REPORT": str(self.report),
        }

    def start(self, *args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "taskgate", *args],
            cwd=self.work,
            env=self.environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    def run(self, *args: str) -> tuple[int, str, str]:
        process = self.start(*args)
        out, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out, err

    def wait_for_agent(self, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not self.report.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the agent never started"
            time.sleep(0.01)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup(tmp_path)
    yield setup
    for process in setup.processes:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=DEADLINE_S)


def test_wrap_runs_the_agent_behind_the_gateway_and_restores_its_files(setup: Setup) -> None:
    code, _, err = setup.run("wrap", "--", "cursor-agent", "--model", "m")
    assert (code, err) == (7, "")
    report = json.loads(setup.report.read_text())
    assert (report["servers"], report["args"]) == (["taskgate"], ["--model", "m"])
    assert "hunter2" in report["config"]
    assert setup.settings.read_text() == setup.before
    assert list((setup.home / ".local/state/taskgate/wraps").iterdir()) == []


def test_wrap_adds_to_the_users_own_file_for_the_run_only(setup: Setup) -> None:
    own = setup.work / "taskgate.yaml"
    own.write_text("servers:\n  own: {command: o}\n")
    setup.run("wrap", "--yes", "--", "cursor-agent")
    config = json.loads(setup.report.read_text())["config"]
    assert "own: {command: o}" in config
    assert "hunter2" in config
    assert [path.name for path in setup.work.iterdir()] == ["taskgate.yaml"]
    assert own.read_text() == "servers:\n  own: {command: o}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_agent_and_files_are_restored(setup: Setup, number: signal.Signals) -> None:
    process = setup.start("wrap", "--", "cursor-agent", "wait")
    setup.wait_for_agent(process)
    process.send_signal(number)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode in (128 + number, 1)
    assert setup.settings.read_text() == setup.before


def test_after_a_kill_the_next_start_restores_files_and_a_second_wrap_is_refused(setup: Setup) -> None:
    process = setup.start("wrap", "--", "cursor-agent", "wait")
    setup.wait_for_agent(process)
    code, _, err = setup.run("wrap", "--", "cursor-agent")
    assert code == 2
    assert "already has the gateway's entry" in err
    agent = int(subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(process.pid)], text=True).split()[0])
    process.kill()
    process.wait(timeout=DEADLINE_S)
    os.kill(agent, signal.SIGKILL)
    assert setup.settings.read_text() != setup.before
    code, _, err = setup.run("wrap", "--recover")
    assert code == 0
    assert "restored after a crash" in err
    assert setup.settings.read_text() == setup.before


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "No agent given"),
        (["--", "no-such-agent"], "was not found"),
        (["--", "cat"], "not a known program"),
        (["--client", "windsurf", "--", "cursor-agent"], "has no servers"),
        (["--client", "cursr", "--", "cursor-agent"], 'did you mean "cursor"'),
    ],
)
def test_wrap_reports_what_is_missing(setup: Setup, args: list[str], words: str) -> None:
    code, _, err = setup.run("wrap", *args)
    assert code == 2
    assert words in err


def test_import_shows_a_diff_keeps_a_backup_and_has_a_dry_run(setup: Setup) -> None:
    target = setup.work / "taskgate.yaml"
    code, out, _ = setup.run("import", "cursor", "--dry-run")
    assert (code, target.exists()) == (0, False)
    assert "+  a:  # from cursor" in out
    assert "hunter2" not in out
    assert setup.run("import")[0] == 0
    assert "hunter2" in target.read_text()
    assert target.stat().st_mode & 0o777 == 0o600
    assert setup.settings.read_text() == setup.before
    lines = setup.run("import", "--json")[1].splitlines()
    (answer,) = [json.loads(line) for line in lines]
    assert (answer["changed"], answer["added"]) == (False, [])
    target.write_text("# mine\n" + target.read_text().replace("  a:", "  b:"))
    assert setup.run("import", "cursor")[0] == 0
    assert (setup.work / "taskgate.yaml.taskgate-backup").read_text().startswith("# mine\n")


def test_install_moves_the_servers_and_undo_brings_them_back(setup: Setup) -> None:
    code, out, _ = setup.run("install", "cursor", "--dry-run")
    assert (code, setup.settings.read_text()) == (0, setup.before)
    assert "Nothing was changed" in out
    assert setup.run("install", "cursor")[0] == 0
    settings = json.loads(setup.settings.read_text().replace("// mine", ""))
    assert list(settings["mcpServers"]) == ["taskgate"]
    assert "// mine" in setup.settings.read_text()
    assert str(setup.config) in settings["mcpServers"]["taskgate"]["args"]
    assert list(setup.work.iterdir()) == []
    code, _, err = setup.run("install", "cursor")
    assert code == 2
    assert "already has the gateway's entry" in err
    assert setup.run("install", "cursor", "--undo")[0] == 0
    assert setup.settings.read_text() == setup.before
    assert [*setup.home.rglob("*.taskgate-backup"), *setup.work.iterdir()] == []
    assert setup.run("install", "cursor", "--undo")[0] == 2


def test_undo_leaves_no_backup_of_a_configuration_that_was_there(setup: Setup) -> None:
    setup.config.parent.mkdir(parents=True)
    setup.config.write_text("schema: 1\nservers: {}\n")
    assert setup.run("install", "cursor")[0] == 0
    backups = list(setup.home.rglob("*.taskgate-backup"))
    assert {path.parent for path in backups} == {setup.config.parent, setup.settings.parent}
    assert setup.run("install", "cursor", "--undo")[0] == 0
    assert list(setup.home.rglob("*.taskgate-backup")) == []


def test_install_uses_the_configuration_of_the_folder_where_there_is_one(setup: Setup) -> None:
    (setup.work / "taskgate.yaml").write_text("schema: 1\nservers: {}\n")
    assert setup.run("install", "cursor")[0] == 0
    assert "hunter2" in (setup.work / "taskgate.yaml").read_text()
    assert not setup.config.exists()


@pytest.mark.parametrize("command", ["import", "install"])
def test_a_server_to_log_in_to_is_named_before_anything_changes_and_keeps_its_login(setup: Setup, command: str) -> None:
    setup.before = '{"mcpServers": {"linear": {"url": "https://mcp.linear.test/mcp"}}}'
    setup.settings.write_text(setup.before)
    target = setup.config if command == "install" else setup.work / "taskgate.yaml"
    code, out, err = setup.run(command, "cursor", "--dry-run")
    assert (code, setup.settings.read_text(), target.exists()) == (0, setup.before, False)
    assert "taskgate servers login linear" in out + err
    assert setup.run(command, "cursor")[0] == 0
    assert yaml.safe_load(target.read_text())["servers"]["linear"]["auth"] == {"type": "authorization_code"}


def test_install_can_point_to_a_running_gateway(setup: Setup) -> None:
    assert setup.run("install", "cursor", "--url", "http://127.0.0.1:7467/mcp")[0] == 0
    settings = json.loads(setup.settings.read_text().replace("// mine", ""))
    assert settings["mcpServers"] == {"taskgate": {"url": "http://127.0.0.1:7467/mcp"}}


SHARED = '{"mcpServers": {"team": {"command": "python", "args": ["serve.py"], "cwd": "tools"}}}\n'


@pytest.fixture
def shared(setup: Setup) -> Path:
    """A file of the project, which is shared with others."""
    path = setup.work / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(SHARED)
    return path


def test_install_does_not_change_a_shared_file_and_warns_first(setup: Setup, shared: Path) -> None:
    code, out, err = setup.run("install", "cursor", "--dry-run")
    assert (code, "Nothing was changed" in out) == (0, True)
    assert f"{shared} is shared" in err
    assert "(team) bypass the gateway" in err
    assert "taskgate install cursor --project" in err
    assert setup.run("install", "cursor")[0] == 0
    assert shared.read_text() == SHARED
    assert "team" not in setup.config.read_text()


def test_a_shared_file_is_changed_on_request_without_local_paths(setup: Setup, shared: Path) -> None:
    code, _, err = setup.run("install", "cursor", "--project", "--yes")
    assert (code, err) == (0, "")
    entry = {"command": "taskgate", "args": ["stdio", "-c", "taskgate.yaml"]}
    assert json.loads(shared.read_text()) == {"mcpServers": {"taskgate": entry}}
    written = (setup.work / "taskgate.yaml").read_text()
    assert "cwd: tools" in written
    assert str(setup.work) not in shared.read_text() + written
    assert setup.settings.read_text() == setup.before
    assert setup.run("install", "cursor", "--project", "--undo")[0] == 0
    assert shared.read_text() == SHARED


def test_a_shared_file_leads_to_the_projects_own_configuration_only(setup: Setup, shared: Path) -> None:
    code, _, err = setup.run("install", "cursor", "--project", "-c", str(setup.home / "mine.yaml"))
    assert (code, "project folder" in err) == (2, True)
    code, _, err = setup.run("install", "windsurf", "--project")
    assert (code, "has no project settings" in err) == (2, True)
    assert shared.read_text() == SHARED


def test_wrap_restores_a_shared_file_and_warns_about_it(setup: Setup, shared: Path) -> None:
    code, _, err = setup.run("wrap", "--yes", "--", "cursor-agent")
    assert (code, f"{shared} is shared" in err) == (7, True)
    assert "serve.py" in json.loads(setup.report.read_text())["config"]
    assert shared.read_text() == SHARED
