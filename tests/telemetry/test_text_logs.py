"""Log lines for people: a value from a peer cannot move the cursor, start a line or reverse text."""

from __future__ import annotations

import json

import pytest

from taskgate.core.text.plain_text import visible
from taskgate.telemetry import logs
from taskgate.telemetry.logs import Log

HOSTILE = "a\nERROR forged\r\x1b[2J\x1b]0;title\x07\u202egnp.exe\u200b\u2066x\u2028y\U000e0041\x85z"


@pytest.mark.parametrize("as_text", [True, False])
def test_hostile_values_stay_on_their_line(capsys: pytest.CaptureFixture[str], as_text: bool) -> None:
    log = Log()
    log.as_text = as_text
    log.info("caller said " + HOSTILE, name=HOSTILE, nested={"k": [HOSTILE]})
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    colours = {"\x1b[2m", "\x1b[0m", "\x1b[32m", "\x1b[36m"}
    for colour in colours:
        output = output.replace(colour, "")
    assert output.rstrip("\n").isprintable()
    assert "forged" in output
    if not as_text:
        assert json.loads(output)["name"] == HOSTILE


def test_a_traceback_keeps_its_lines_with_control_characters_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    log.as_text = True
    log.error("broken", exc_info=ValueError("\x1b[2Jgone\u202e"))
    output = capsys.readouterr().err
    assert "\x1b[2J" not in output
    assert "\u202e" not in output
    assert "ValueError: \\u001b[2Jgone\\u202e" in output


def test_ordinary_text_is_left_alone() -> None:
    for text in ("", "Grüße, 世界 🙂", "two\nlines"):
        assert visible(text) == text
    assert visible("two\nlines", keep="") == "two\\u000alines"


@pytest.mark.parametrize(
    ("form", "on_a_terminal", "as_text"),
    [("auto", True, True), ("auto", False, False), ("text", False, True), ("json", True, False)],
)
def test_logs_are_text_on_a_terminal_and_json_otherwise(
    monkeypatch: pytest.MonkeyPatch, form: str, on_a_terminal: bool, as_text: bool
) -> None:
    monkeypatch.setattr(logs, "log", Log())
    monkeypatch.setattr("sys.stderr.isatty", lambda: on_a_terminal)
    logs.set_up("info", form)
    assert logs.log.as_text is as_text
