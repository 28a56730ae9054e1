"""`import`, `install`, `init` and `wrap` take over files of a project after consent, and allow what they write."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from taskgate.cli import project_files
from taskgate.cli.root import build_app
from taskgate.consent import Allowed, file_for_client

OWN = '{"mcpServers": {"notes": {"command": "echo", "args": ["x"]}}}\n'
SHARED = '{"mcpServers": {"build": {"command": "sh", "args": ["-c", "true"], "cwd": "d"}}}\n'


class Project:
    """A project with MCP settings of its own, opened by a user of Cursor."""

    def __init__(self, folder: Path) -> None:
        self.home, self.folder = folder / "home", folder / "project"
        self.own = self.home / ".config" / "taskgate" / "taskgate.yaml"
        self.file, self.shared = self.folder / "taskgate.yaml", self.folder / ".cursor" / "mcp.json"
        self.settings = self.home / ".cursor" / "mcp.json"
        for path, text in ((self.settings, OWN), (self.shared, SHARED)):
            path.parent.mkdir(parents=True)
            path.write_text(text)
        self.allowed = Allowed(str(folder / "state"))
        self.environment = {"HOME": str(self.home), "TASKGATE_STATE_DIR": str(folder / "state")}

    def run(self, *words: str, answers: str = "", code: int = 0) -> Result:
        done = CliRunner().invoke(build_app(), list(words), input=answers)
        assert done.exit_code == code, done.output
        return done

    def servers(self, path: Path | None = None) -> list[str]:
        return sorted(yaml.safe_load((path or self.file).read_text())["servers"])

    @property
    def is_used_by_clients(self) -> bool:
        return file_for_client(None, self.environment).is_found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path)
    monkeypatch.chdir(made.folder)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Streams:
        class stdin:
            @staticmethod
            def isatty() -> bool:
                return True

    monkeypatch.setattr(project_files, "sys", Streams)


def test_import_leaves_settings_of_the_project_that_are_not_allowed(project: Project) -> None:
    (answer,) = map(json.loads, project.run("import", "--json").stdout.splitlines())
    assert [item["id"] for item in answer["added"]] == ["notes"]
    (note,) = [note for note in answer["notes"] if "taskgate allow" in note]
    assert "build" in note
    assert project.is_used_by_clients, "it contains only what import has written"


def test_import_takes_settings_of_the_project_after_consent(project: Project) -> None:
    shown = project.run("allow", str(project.shared)).stdout
    assert "runs sh -c true" in shown
    project.run("import")
    assert project.servers() == ["build", "notes"]
    assert project.is_used_by_clients


def test_changed_settings_of_the_project_need_consent_again(project: Project) -> None:
    project.run("allow", str(project.shared))
    project.shared.write_text(SHARED.replace("true", "false"))
    project.run("import")
    assert project.servers() == ["notes"]


def test_yes_takes_settings_of_the_project(project: Project) -> None:
    project.run("import", "--yes")
    assert project.servers() == ["build", "notes"]
    assert project.allowed.digests(str(project.shared))


@pytest.mark.usefixtures("at_terminal")
@pytest.mark.parametrize(("answer", "servers"), [("y\n", ["build", "notes"]), ("n\n", ["notes"])])
def test_a_terminal_shows_the_commands_and_asks(project: Project, answer: str, servers: list[str]) -> None:
    shown = project.run("import", answers=answer)
    assert "runs sh -c true" in shown.output
    assert project.servers() == servers


@pytest.mark.usefixtures("at_terminal")
def test_misleading_characters_are_shown_before_import(project: Project) -> None:
    project.shared.write_text('{"mcpServers": {"a": {"url": "https://g\u0456thub.com/mcp"}}}')
    assert "https://g\\u0456thub.com/mcp" in project.run("import", answers="n\n").output


def test_import_into_a_found_file_allows_what_it_adds_and_nothing_else(project: Project) -> None:
    text = "servers:\n  theirs: {command: theirs}\n"
    project.file.write_text(text)
    project.run("import", "cursor", code=2)
    project.run("import", "cursor", "-c", str(project.file))
    assert project.servers() == ["notes", "theirs"]
    assert project.allowed.digests(str(project.file)) is None, "a name on the command line says nothing about the rest"
    project.file.write_text(text)
    project.run("allow")
    project.run("import", "cursor")
    assert project.servers() == ["notes", "theirs"]
    assert project.is_used_by_clients
    assert [line for line in project.run("allow").stdout.splitlines() if line.startswith("+")] == []


def test_install_uses_a_found_file_after_consent(project: Project) -> None:
    project.file.write_text("servers:\n  theirs: {command: theirs}\n")
    project.run("install", "cursor", code=2)
    assert project.settings.read_text() == OWN
    assert "not allowed" in project.run("install", "cursor", "--dry-run").stderr
    assert project.settings.read_text() == OWN
    project.run("install", "cursor", "--yes")
    assert str(project.file) in project.settings.read_text()
    assert project.servers() == ["notes", "theirs"]
    assert project.is_used_by_clients


def test_install_without_a_found_file_uses_the_users_own(project: Project) -> None:
    project.run("install", "cursor")
    assert project.servers(project.own) == ["notes"]
    assert project.shared.read_text() == SHARED
    assert project.allowed.files() == {}


def test_install_for_the_project_needs_consent_for_both_files(project: Project) -> None:
    project.run("install", "cursor", "--project", code=2)
    assert project.shared.read_text() == SHARED
    project.run("allow", ".cursor/mcp.json")
    project.file.write_text("servers:\n  theirs: {command: theirs}\n")
    project.run("install", "cursor", "--project", code=2)
    project.run("install", "cursor", "--project", "-c", "taskgate.yaml", code=2)
    assert project.shared.read_text() == SHARED
    project.run("allow")
    project.run("install", "cursor", "--project")
    assert "taskgate.yaml" in project.shared.read_text()
    assert project.servers() == ["build", "theirs"]
    assert project.is_used_by_clients


def test_init_allows_what_it_wrote(project: Project) -> None:
    project.run("init")
    assert project.servers() == ["notes"]
    assert project.is_used_by_clients
    project.file.unlink()
    project.run("init", "--yes")
    assert project.servers() == ["build", "notes"]
    assert project.is_used_by_clients


def test_init_with_the_demo_server_is_used_by_clients(project: Project) -> None:
    project.settings.unlink()
    project.shared.unlink()
    project.run("init")
    assert project.is_used_by_clients


def test_wrap_uses_files_of_the_project_after_consent(project: Project, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    copied = f"import pathlib, shutil; p = pathlib.Path({str(project.own.parent)!r}); shutil.copytree(p, {str(seen)!r})"
    project.own.parent.mkdir(parents=True)
    project.own.write_text("servers: {mine: {command: mine}}\n".replace("{mine", "\n  mine", 1).replace("}}", "}"))
    agent = ["--", sys.executable, "-c", copied]
    on_signals = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert "not allowed" in project.run("wrap", "--client", "cursor", *agent).stderr
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == on_signals
    assert project.servers(seen / ".taskgate-wrap-cursor.yaml") == ["mine", "notes"]
    project.file.write_text("servers:\n  theirs: {command: theirs}\n")
    project.run("wrap", "--client", "cursor", *agent, code=2)
    assert project.shared.read_text() == SHARED


def test_import_still_changes_a_named_file_whose_records_are_in_a_folder_that_a_variable_names(
    project: Project,
) -> None:
    project.file.write_text('registry_dir: "${HOME}/r"\n')
    project.run("import", "cursor", "-c", str(project.file))
    assert project.servers() == ["notes"]
    assert project.allowed.files() == {}
