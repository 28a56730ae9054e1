"""A secret that came from a reference is found in nothing that shows, expected or logs something about the configuration."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.console.test_console_routes_and_streams import TOKENS
from tests.console.test_console_rules_and_usage import bank, page
from tests.virtual_time import Gateway, virtual_time

from taskgate.cli.root import build_app
from taskgate.config import ConfigError, load
from taskgate.core.redaction.fields import HIDDEN
from taskgate.core.redaction.secret_values import SecretValues
from taskgate.telemetry import logs
from taskgate.telemetry.logs import Log
from taskgate.upstreams.backoff import LONGEST_S
from taskgate.upstreams.reconnect import Reconnection

SECRETS = {kind: f"s3cr3t-of-the-{kind}-0123456789" for kind in ("variable", "file", "keyring", "command")}
PATHS = ("system", "servers", "servers/file-program", "servers/file", "rules")
REFERENCES = {
    "variable": "${env:TASKGATE_TEST_SECRET}",
    "file": "${file:secret.txt}",
    "keyring": "${keyring:svc/ann}",
    "command": f"${{command:{sys.executable} secret.py}}",
}


def prepared(folder: Path) -> None:
    (folder / "secret.txt").write_text(SECRETS["file"] + "\n")
    (folder / "secret.txt").chmod(0o644)
    (folder / "secret.py").write_text(f"print({SECRETS['command']!r})")


@pytest.fixture(autouse=True)
def references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    package = tmp_path / "site"
    package.mkdir()
    (package / "keyring.py").write_text(f"def get_password(service, user): return {SECRETS['keyring']!r}")
    monkeypatch.syspath_prepend(package)
    monkeypatch.delitem(sys.modules, "keyring", raising=False)
    monkeypatch.setenv("TASKGATE_TEST_SECRET", SECRETS["variable"])
    monkeypatch.setenv("TASKGATE_STATE_DIR", str(tmp_path / "state"))
    yield
    sys.modules.pop("keyring", None)


def configuration() -> dict[str, Any]:
    """Every kind of reference in many places, of which some are not secret by their names."""
    every = list(REFERENCES.values())
    servers = {
        kind: {"url": f"http://127.0.0.1:9/{reference}", "headers": {"X": reference}, "display_name": reference}
        for kind, reference in REFERENCES.items()
    }
    programs = {
        f"{kind}-program": {"command": f"./none-{reference}", "args": [reference], "env": {"A": reference}}
        for kind, reference in REFERENCES.items()
    }
    channels = [{"type": "webhook", "url": f"https://u:{one}@example.test/{one}", "secret": one} for one in every]
    return {
        **TOKENS,
        "secrets": {"allow_command": True},
        "servers": {**servers, **programs},
        "allowed_hosts": every,
        "people": {"ann": every},
        "governance": {"rules": [{"match": "x", "action": "deny", "reason": one} for one in every]},
        "approval": {"ops": {"channels": channels}},
    }


def assert_hidden(expected_text: str) -> None:
    around = [
        expected_text[max(0, at - 60) : at + 40]
        for secret in SECRETS.values()
        for at in [m.start() for m in re.finditer(re.escape(secret[:24]), expected_text)]
    ]
    assert around == []


def run(*words: str) -> str:
    result = CliRunner().invoke(build_app(), list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output + result.stderr


def test_check_and_doctor_print_no_secrets(tmp_path: Path) -> None:
    prepared(tmp_path)
    file = tmp_path / "taskgate.yaml"
    file.write_text(json.dumps(configuration()))
    assert set(SECRETS.values()) <= set(load(file).root.allowed_hosts)
    checked = run("check", "-c", str(file))
    assert "can be read by every user" in checked
    assert "(8 servers)." in checked
    for text in (checked, run("doctor", "-c", str(file)), run("doctor", "-c", str(file), "--json")):
        assert_hidden(text)
    assert_hidden(repr(load(file)))


@pytest.mark.parametrize("reference", REFERENCES.values(), ids=REFERENCES)
def test_configuration_errors_contain_no_secrets(tmp_path: Path, reference: str) -> None:
    prepared(tmp_path)
    wrong = {
        "secrets": {"allow_command": True},
        "cedar": {"policies": [f"./{reference}.cedar"], "entities": reference},
        "scopes": {"default": {"default_servers": [reference], "profile": reference}},
        "governance": {"rules": [{"match": f"{reference}[", "server": reference, "action": reference}]},
        "tokens": [{"id": reference, "sha256": reference}],
        "listen": {"port": reference},
        "store": {"url": reference},
    }
    file = tmp_path / "taskgate.yaml"
    file.write_text(json.dumps(wrong))
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert len(caught.value.problems) >= 5
    assert_hidden(str(caught.value))
    assert_hidden(run("check", "-c", str(file)))


@virtual_time
async def test_the_console_and_its_api_show_no_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(tmp_path)
    env = {"TASKGATE_TEST_SECRET": SECRETS["variable"]}
    async with Gateway(configuration(), {"bank": bank()}, folder=tmp_path, env=env) as gate:
        _, system = await page(gate, "/system")
        assert HIDDEN in system
        replies = [await gate.operator("GET", f"/api/v1/{path}") for path in PATHS]
        shown = [system, (await page(gate, "/rules"))[1], (await page(gate, "/servers"))[1]]
        assert_hidden("\n".join([*shown, *(reply.body.decode() for reply in replies)]))
        gate.config_file.write_text(gate.config_file.read_text() + "\nnonsense: 1\n")
        assert_hidden((await gate.operator("POST", "/api/v1/system/reload", {})).body.decode())
    logged = capsys.readouterr().err
    assert "can be read by every user" in logged
    assert_hidden(logged)


REFUSED: dict[str, dict[str, Any]] = {
    "store": {"store": {"url": "postgresql://u:${env:TASKGATE_TEST_SECRET}@127.0.0.1:9/${env:TASKGATE_TEST_SECRET}"}},
    "listen": {"listen": {"host": "${env:TASKGATE_TEST_SECRET}"}, "auth": "none"},
}


@pytest.mark.parametrize(
    ("given", "words", "expected"),
    [
        ("store", ("serve",), "The PostgreSQL store cannot be used"),
        ("store", ("stdio", "--alone"), "The PostgreSQL store cannot be used"),
        ("store", ("store", "check"), ""),
        ("listen", ("serve", "--port", "0"), "Cannot listen on"),
    ],
)
def test_errors_after_loading_contain_no_secrets(
    tmp_path: Path, given: str, words: tuple[str, ...], expected: str
) -> None:
    file = tmp_path / "taskgate.yaml"
    file.write_text(json.dumps({**REFUSED[given], "servers": {"s": {"url": "http://127.0.0.1:9/mcp"}}}))
    command = [sys.executable, "-m", "taskgate", *words, "-c", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode != 0, done.stdout
    assert expected in done.stderr
    assert HIDDEN in done.stderr
    assert_hidden(done.stdout + done.stderr)


def test_internal_errors_contain_no_secrets(tmp_path: Path) -> None:
    prepared(tmp_path)
    file = tmp_path / "taskgate.yaml"
    file.write_text(json.dumps(configuration()))
    script = (
        "import sys; from taskgate.cli import main, serve; import taskgate.assembly.open_app as b\n"
        "def fails(loaded): raise RuntimeError(loaded.root.allowed_hosts)\n"
        "b.build_for_check = fails; sys.argv = ['taskgate', 'check', '-c', sys.argv[1]]; main.main()"
    )
    for debug in ("", "1"):
        done = subprocess.run(
            [sys.executable, "-c", script, str(file)],
            capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "TASKGATE_DEBUG": debug, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *sys.path])},
        )  # fmt: skip
        assert done.returncode == 70, done.stderr
        assert HIDDEN in done.stderr
        assert ("Traceback" in done.stderr) is bool(debug)
        assert_hidden(done.stderr)


@virtual_time
async def test_secrets_are_redacted_if_program_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's own call starts the program: after an attempt by the gateway, the error states only the next attempt."""
    monkeypatch.setattr(Reconnection, "start", lambda _reconnection: None)
    prepared(tmp_path)
    env = {"TASKGATE_TEST_SECRET": SECRETS["variable"]}
    async with Gateway(configuration(), {"bank": bank()}, folder=tmp_path, env=env) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef")
        for kind in REFERENCES:
            await gate.advance(2 * LONGEST_S)
            reply = (await caller.call(f"{kind}-program__anything")).body.decode()
            assert "could not be started" in reply
            assert HIDDEN in reply
            assert_hidden(reply)


def test_log_lines_of_libraries_contain_no_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    secret = SECRETS["variable"]
    line = logging.LogRecord("asyncio", logging.ERROR, __file__, 1, "lost: %s", (secret,), None)
    logs.log.hide(SecretValues((secret,)).text)
    try:
        assert logs._LibraryLines("%(message)s").format(line) == f"lost: {HIDDEN}"
        logs.log.hide_also(SecretValues(("another-secret",)).text)
        logs.log.error(f"what {secret} and another-secret are")
    finally:
        logs.log.hide(str)
    assert f"what {HIDDEN} and {HIDDEN} are" in capsys.readouterr().err


def test_nested_values_of_log_lines_contain_no_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(tmp_path)
    file = tmp_path / "taskgate.yaml"
    file.write_text(json.dumps(configuration()))
    secret, log = SECRETS["file"], Log()
    log.hide(load(file).secret_values.text)
    log.warning("x", a=secret, b=[f"x{secret}"], c={"d": (secret,)}, e=ValueError(secret), f=5, g=None)
    log.error("y", exc_info=ValueError(secret))
    lines = capsys.readouterr().err
    assert_hidden(lines)
    first = json.loads(lines.splitlines()[0])
    assert (first["a"], first["b"], first["c"]) == (HIDDEN, [f"x{HIDDEN}"], {"d": [HIDDEN]})
    assert (first["e"], first["f"], first["g"]) == (HIDDEN, 5, None)
