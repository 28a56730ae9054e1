"""Every mistake is reported at once, with its position and a fix; the expected texts are stored beside the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskgate.config import ConfigError, load, load_text

MISTAKES = sorted((Path(__file__).parent / "mistakes").glob("*.yaml"))
ENVIRONMENT = {"NUMBER_VARIABLE": "hunter2", "HOME": "/nowhere"}


@pytest.mark.parametrize("path", MISTAKES, ids=lambda path: path.stem)
def test_each_invalid_file_gives_exactly_the_expected_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration error names file, line, key and the accepted values."""
    monkeypatch.chdir(path.parent)
    with pytest.raises(ConfigError) as caught:
        load(path.name, ENVIRONMENT)
    assert f"{caught.value}\n" == path.with_suffix(".txt").read_text(encoding="utf-8")


def test_a_problem_has_structured_fields() -> None:
    with pytest.raises(ConfigError) as caught:
        load_text("servers:\n  files: {comand: x}\n", "t.yaml", environment={})
    unknown = next(p for p in caught.value.problems if p.message == "unknown key")
    assert (unknown.file, unknown.line, unknown.column) == ("t.yaml", 2, 11)
    assert (unknown.key, unknown.hint) == ("servers.files.comand", 'did you mean "command"?')


def test_a_value_from_a_variable_is_never_in_a_message() -> None:
    text = (
        "telemetry: {metrics: '${SECRET}'}\nprofile: '${SECRET}'\nlisten: {port: '${SECRET}'}\n"
        "approval: {a: {channels: ['${SECRET}'], timeout: '${SECRET}'}}\n"
        "servers: {x: {url: '${SECRET}', transport: '${SECRET}', budgets: {max_concurrency: '${SECRET}'}}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_text(text, environment={"SECRET": "hunter2"})
    assert len(caught.value.problems) >= 7
    assert "hunter2" not in str(caught.value)


def test_a_configuration_never_shows_secrets_when_printed() -> None:
    text = (
        "servers: {x: {url: 'http://127.0.0.1:1/', headers: {Authorization: hunter2}},"
        " y: {command: c, env: {K: hunter2}}}\n"
        "approval: {a: {channels: [inbox, {type: webhook, url: 'http://127.0.0.1:1/', secret: hunter2}]}}\n"
        "store: {url: 'postgresql://u:hunter2@127.0.0.1/db'}\n"
    )
    assert "hunter2" not in repr(load_text(text, environment={}))
