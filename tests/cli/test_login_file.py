"""Logins that commands store for gateways that require one."""

from __future__ import annotations

import stat
from pathlib import Path

from taskgate.cli.browser_login import LoginFile


def test_two_commands_that_log_in_at_once_keep_both_logins(tmp_path: Path) -> None:
    path = tmp_path / "taskgate" / "logins.json"
    one, other = LoginFile(path), LoginFile(path)
    one["https://a.example.test"] = {"access_token": "a"}
    other["https://b.example.test"] = {"access_token": "b"}
    assert set(LoginFile(path)) == {"https://a.example.test", "https://b.example.test"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
