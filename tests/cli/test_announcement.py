"""What `taskgate serve` prints when it serves."""

from __future__ import annotations

import os
import sys

import pytest

from taskgate.cli.announcement import announce
from taskgate.config.load import load_text

LINK = "http://127.0.0.1:7467/login?code=once"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_login_link_is_created_only_for_a_terminal(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    created: list[str] = []

    def login_url() -> str:
        created.append(LINK)
        return LINK

    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    announce(load_text("{}", environment={"HOME": os.sep}), "127.0.0.1", 7467, login_url)
    printed = capsys.readouterr().out
    assert "No server is configured" in printed
    assert (created, LINK in printed) == ([LINK] * is_terminal, is_terminal)
