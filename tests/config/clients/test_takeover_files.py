"""Changed settings files are restored: at the end, after a crash, and without losing what the client wrote meanwhile."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from taskgate.config.clients.change_records import keep_record, restore_file, undo
from taskgate.config.clients.client import Gateway, Host
from taskgate.config.clients.install_plan import AlreadyInFront, FileChange, plan_takeover
from taskgate.config.clients.known import CLIENTS
from taskgate.config.clients.takeover import InUse, LeftChanged, Takeover, recover

GATEWAY = Gateway(("/bin/taskgate", "stdio"))
BEFORE = (
    '\ufeff{\r\n  // mine\r\n  "mcpServers": {"a": {"command": "x"}},\r\n'
    '  "projects": {"FOLDER": {"mcpServers": {"p": {"command": "y"}}}}\r\n}'
)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "w").mkdir()
    host = Host(tmp_path, tmp_path / "w", "linux")
    (tmp_path / ".claude.json").write_text(BEFORE.replace("FOLDER", str(host.folder)), encoding="utf-8", newline="")
    (tmp_path / ".claude.json").chmod(0o640)
    (tmp_path / "w" / ".mcp.json").write_text('{"mcpServers": {"q": {"command": "z"}}}')
    return host


def _changes(host: Host) -> list[FileChange]:
    return plan_takeover(CLIENTS["claude-code"], host, GATEWAY)


def _state(host: Host) -> dict[str, bytes]:
    return {name: (host.home / name).read_bytes() for name in (".claude.json", "w/.mcp.json")}


def test_during_a_takeover_the_client_has_only_the_gateway(host: Host) -> None:
    before = _state(host)
    takeover = Takeover(host.home / "wraps")
    takeover.begin(_changes(host))
    text = (host.home / ".claude.json").read_text(encoding="utf-8-sig")
    settings = json.loads(text.replace("// mine", ""))
    assert settings["mcpServers"] == {"taskgate": {"type": "stdio", "command": "/bin/taskgate", "args": ["stdio"]}}
    assert settings["projects"][str(host.folder)]["mcpServers"] == {}
    assert json.loads((host.folder / ".mcp.json").read_text()) == {"mcpServers": {}}
    assert takeover.end() == []
    assert _state(host) == before
    assert (host.home / ".claude.json").stat().st_mode & 0o777 == 0o640
    assert list((host.home / "wraps").iterdir()) == []


def test_changes_by_the_client_during_a_takeover_are_kept(host: Host) -> None:
    takeover = Takeover(host.home / "wraps")
    takeover.begin(_changes(host))
    path = host.home / ".claude.json"
    path.write_text(path.read_text(encoding="utf-8").replace("// mine", '"startups": 5,'), encoding="utf-8")
    assert takeover.end() == []
    settings = json.loads(path.read_text(encoding="utf-8-sig"))
    assert settings["startups"] == 5
    assert settings["mcpServers"] == {"a": {"command": "x"}}
    assert settings["projects"][str(host.folder)]["mcpServers"] == {"p": {"command": "y"}}


def test_a_second_takeover_of_the_same_client_is_refused(host: Host) -> None:
    changes = _changes(host)
    first = Takeover(host.home / "wraps")
    first.begin(changes)
    with pytest.raises(AlreadyInFront):
        _changes(host)
    with pytest.raises(InUse):
        Takeover(host.home / "wraps").begin(changes)
    assert recover(host.home / "wraps") == []
    first.end()


def test_a_crash_is_recovered_from_at_the_next_start(host: Host) -> None:
    before = _state(host)
    changes = _changes(host)
    child = os.fork()
    if child == 0:
        Takeover(host.home / "wraps").begin(changes)
        os._exit(9)
    os.waitpid(child, 0)
    assert _state(host) != before
    with pytest.raises(LeftChanged):
        Takeover(host.home / "wraps").begin(changes)
    notes = recover(host.home / "wraps")
    assert len(notes) == 2
    assert _state(host) == before
    assert recover(host.home / "wraps") == []


def test_if_one_file_cannot_be_written_none_stays_changed(host: Host) -> None:
    before = _state(host)
    blocked = FileChange(host.home / ".claude.json" / "x", "", "y", False, ())
    with pytest.raises(OSError):
        Takeover(host.home / "wraps").begin([*_changes(host), blocked])
    assert _state(host) == before


def test_a_file_that_became_unreadable_is_left_with_a_backup_beside_it(host: Host) -> None:
    takeover = Takeover(host.home / "wraps")
    takeover.begin(_changes(host))
    (host.folder / ".mcp.json").write_text("{oops")
    (note,) = takeover.end()
    assert "could not be restored" in note
    backup = host.folder / ".mcp.json.taskgate-backup"
    assert json.loads(backup.read_text()) == {"mcpServers": {"q": {"command": "z"}}}


def test_a_created_file_is_removed_again(tmp_path: Path) -> None:
    (change,) = plan_takeover(CLIENTS["cursor"], Host(tmp_path, tmp_path / "w", "linux"), GATEWAY)
    takeover = Takeover(tmp_path / "wraps")
    takeover.begin([change])
    assert change.path.stat().st_mode & 0o777 == 0o600
    takeover.end()
    assert not change.path.exists()


def test_a_permanent_change_can_be_undone(host: Host) -> None:
    before = _state(host)
    for change in _changes(host):
        keep_record(host.home / "installs", change)
        change.path.write_text(change.after, encoding="utf-8", newline="")
    assert len(undo(host.home / "installs")) == 2
    assert _state(host) == before
    assert undo(host.home / "installs") == []


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "dotfiles.json").write_text("{}")
    (tmp_path / ".cursor").mkdir()
    link = tmp_path / ".cursor" / "mcp.json"
    link.symlink_to(tmp_path / "dotfiles.json")
    (change,) = plan_takeover(CLIENTS["cursor"], Host(tmp_path, tmp_path / "w", "linux"), GATEWAY)
    takeover = Takeover(tmp_path / "wraps")
    takeover.begin([change])
    assert link.is_symlink()
    assert "taskgate" in (tmp_path / "dotfiles.json").read_text()
    takeover.end()
    assert (tmp_path / "dotfiles.json").read_text() == "{}"


def test_a_damaged_record_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    assert recover(tmp_path) == []
    assert not (tmp_path / "x.json").exists()


def test_restoring_an_unchanged_file_does_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text("{}")
    restore_file(FileChange(path, "{}", "changed", True, ()))
    assert path.read_text() == "{}"
