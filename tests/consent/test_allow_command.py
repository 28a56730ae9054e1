"""`taskgate allow`: what it shows, records, lists and withdraws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from taskgate.cli import allow as module
from taskgate.cli.root import build_app
from taskgate.consent import Allowed

TEXT = """\
servers:
  a: {command: sh, args: ["-c", "echo \\u202e x"], env: {K: "${A_VARIABLE}"}}
  b: {url: "https://h.example/mcp", headers: {X: "1"}}
registry_dir: r
governance: {rules: []}
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    (folder / "r").mkdir(parents=True)
    (folder / "r" / "c.yaml").write_text("command: third\n")
    (folder / "taskgate.yaml").write_text(TEXT)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TASKGATE_STATE_DIR", str(tmp_path / "state"))
    return folder


def taskgate(*words: str, answer: str = "") -> Result:
    return CliRunner().invoke(build_app(), list(words), input=answer)


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_everything_that_leaves_the_file_is_shown(work: Path) -> None:
    done = taskgate("allow")
    assert done.exit_code == 0
    shown = [line for line in done.stdout.splitlines() if line.startswith("+ ")]
    assert len(shown) == 4
    assert 'K": "${A_VARIABLE}"' in shown[0]
    assert "\u202e" not in done.stdout
    assert "https://h.example/mcp" in shown[1]
    assert "r" in shown[2]
    assert "third" in shown[3]
    assert Allowed(str(work.parent / "state")).digests("taskgate.yaml")
    assert not [line for line in taskgate("allow").stdout.splitlines() if line.startswith("+ ")]


def test_json_names_the_file_and_its_items(work: Path) -> None:
    (first,) = rows(taskgate("allow", "--json"))
    assert first["file"] == str(work / "taskgate.yaml")
    assert [item["new"] for item in first["allowed"]] == [True] * 4
    assert first["allowed"][0]["value"]["env"] == {"K": "${A_VARIABLE}"}
    (work / "taskgate.yaml").write_text(TEXT + "facade: {add_server: session}\n")
    (second,) = rows(taskgate("allow", "--json"))
    assert [item["where"] for item in second["allowed"] if item["new"]] == ["facade"]


def test_files_are_listed_and_withdrawn(work: Path) -> None:
    assert rows(taskgate("allow", "--list", "--json")) == []
    taskgate("allow", str(work / "taskgate.yaml"))
    (row,) = rows(taskgate("allow", "--list", "--json"))
    assert (row["file"], row["items"], row["exists"]) == (str(work / "taskgate.yaml"), 4, True)
    (work / "taskgate.yaml").unlink()
    assert "no longer exists" in taskgate("allow", "--list").stdout
    assert taskgate("allow", "--revoke").exit_code == 0
    assert taskgate("allow", "--revoke").exit_code == 8
    assert rows(taskgate("allow", "--list", "--json")) == []


def test_a_terminal_is_asked(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    class Streams:
        stdin = Terminal()

    monkeypatch.setattr(module, "sys", Streams())
    assert taskgate("allow", answer="n\n").exit_code == 4
    assert not Allowed(str(work.parent / "state")).files()
    assert taskgate("allow", answer="y\n").exit_code == 0
    assert taskgate("allow", "--revoke").exit_code == 0
    assert taskgate("allow", "--yes").exit_code == 0
    assert Allowed(str(work.parent / "state")).files()


@pytest.mark.parametrize("text", ["servers: [", "servers: 3\n x: 1", None])
def test_a_file_that_cannot_be_read_is_not_allowed(work: Path, text: str | None) -> None:
    file = work / "taskgate.yaml"
    file.unlink() if text is None else file.write_text(text)
    assert taskgate("allow").exit_code == 2
    assert not Allowed(str(work.parent / "state")).files()


def test_records_that_others_can_change_are_reported(work: Path) -> None:
    taskgate("allow")
    Path(Allowed(str(work.parent / "state")).path).chmod(0o666)
    for words in ((), ("--list",), ("--revoke",)):
        assert taskgate("allow", *words).exit_code == 1


def test_misleading_characters_are_shown(work: Path) -> None:
    """A Cyrillic letter in an address, blank characters, and spaces that push the end of a command out of sight."""
    hidden = "echo\u3164" + " " * 200 + "; touch x"
    text = {"servers": {"a": {"url": "https://g\u0456thub.com/mcp"}, "b": {"command": "sh", "args": ["-c", hidden]}}}
    (work / "taskgate.yaml").write_text(json.dumps(text))
    shown = taskgate("allow").stdout
    assert "https://g\\u0456thub.com/mcp" in shown
    assert "echo\\u3164\\u0020" in shown
    assert "; touch x" in shown
