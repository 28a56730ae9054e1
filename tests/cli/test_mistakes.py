"""No mistake of a user ends in a traceback: one sentence with the next step, and the documented exit code."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.harness.commands import command
from tests.harness.gateway import running_gateway
from tests.harness.programs import run_to_end

from taskgate.cli import main as command_line
from taskgate.cli import root
from taskgate.cli.doctor_servers import PRINTS

SERVER = {
    "a": {"command": sys.executable, "args": ["-c", "import sys; sys.stderr.write('no licence\\n'); sys.exit(3)"]}
}


def configuration(folder: Path, **more: Any) -> str:
    path = folder / "taskgate.yaml"
    path.write_text(json.dumps({"schema": 1, "servers": SERVER, "listen": {"port": 0}, **more}))
    return str(path)


async def run_with_mistake(folder: Path, *words: str, state: str | None = None) -> tuple[int, str]:
    """The exit code of a command in a separate process, and all its output."""
    env = {"TASKGATE_STATE_DIR": state or str(folder / "state")}
    code, out, err = await run_to_end([sys.executable, "-m", "taskgate", *words], env, within=90)
    assert "Traceback" not in out + err
    return code, out + err


@pytest.mark.parametrize("words", [["check"], ["serve", "--port", "0"], ["stdio"], ["stdio", "--alone"]])
async def test_a_store_that_is_no_database(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "bad.db").write_bytes(b"this is not a database" * 100)
    config = configuration(tmp_path, store={"url": "sqlite:///./bad.db"})
    code, output = await run_with_mistake(tmp_path, *words, "-c", config)
    assert code == 2
    assert "bad.db cannot be opened" in output


async def test_a_database_that_is_not_supported(tmp_path: Path) -> None:
    config = configuration(tmp_path, store={"url": "postgresql://x@y/z"})
    for words in (("check",), ("serve",)):
        code, output = await run_with_mistake(tmp_path, *words, "-c", config)
        assert code == 2
        assert "PostgreSQL" in output


@pytest.mark.parametrize("words", [["check"], ["serve", "--port", "0"]])
async def test_a_certificate_that_does_not_exist(tmp_path: Path, words: list[str]) -> None:
    tls = {"cert": "./gate.pem", "key": "./gate.key"}
    config = configuration(tmp_path, listen={"port": 0, "tls": tls})
    code, output = await run_with_mistake(tmp_path, *words, "-c", config)
    assert code == 2
    assert "listen.tls" in output


async def test_check_does_not_ask_for_a_server_if_all_of_them_are_skipped(tmp_path: Path) -> None:
    config = configuration(tmp_path, servers={"a": {"command": "python", "env": {"A": "${NOT_SET_ANYWHERE}"}}})
    code, output = await run_with_mistake(tmp_path, "check", "-c", config)
    assert code == 2
    assert "NOT_SET_ANYWHERE" in output
    assert "No server is configured" not in output


@pytest.mark.parametrize("words", [["check"], ["serve", "--port", "0"], ["stdio"], ["stdio", "--alone"]])
async def test_a_state_folder_that_cannot_be_one(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "file").write_text("")
    code, options = await run_with_mistake(
        tmp_path, *words, "-c", configuration(tmp_path), state=str(tmp_path / "file")
    )
    assert code in (2, 3)
    assert "TASKGATE_STATE_DIR" in options


async def test_a_port_out_of_range(tmp_path: Path) -> None:
    code, options = await run_with_mistake(tmp_path, "serve", "-c", configuration(tmp_path), "--port", "80000")
    assert code == 2
    assert "65535" in options


async def test_check_builds_the_channels_too(tmp_path: Path) -> None:
    config = configuration(
        tmp_path, approval={"default": {"channels": ["inbox", {"type": "notify", "urls": ["nothing-known://x"]}]}}
    )
    code, _, output = await command("check", "-c", config, env={"TASKGATE_STATE_DIR": str(tmp_path / "state")})
    assert code == 2
    assert "approval.default.channels" in output


async def test_check_warns_about_missing_program(tmp_path: Path) -> None:
    servers = {
        "there": {"command": sys.executable},
        "lost": {"command": "no-such-program"},
        "off": {"command": "nor-this"},
    }
    config = configuration(tmp_path, servers={**servers, "off": {**servers["off"], "enabled": False}})
    code, out, output = await command("check", "-c", config, env={"TASKGATE_STATE_DIR": str(tmp_path / "state")})
    assert (code, "Configuration valid" in out) == (0, True)
    received = [line for line in output.splitlines() if "cannot start" in line]
    assert received == [
        "warning: servers.lost: the command 'no-such-program' was not found or is not executable; "
        "this server cannot start on this machine"
    ]


@pytest.mark.parametrize("auth", [None, {"type": "forward_identity"}])
async def test_doctor_reports_a_state_folder_that_cannot_be_one(tmp_path: Path, auth: dict[str, str] | None) -> None:
    (tmp_path / "file").write_text("")
    server = {"url": "http://127.0.0.1:9/mcp", **({"auth": auth} if auth else {})}
    config = configuration(tmp_path, servers={"a": server})
    code, output = await run_with_mistake(tmp_path, "doctor", "-c", config, state=str(tmp_path / "file" / "state"))
    assert (code, "BAD  store" in output) == (9, True), output
    assert "executed" not in output


async def test_doctor_creates_nothing(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    await run_with_mistake(tmp_path, "doctor", "-c", config)
    assert [path.name for path in tmp_path.iterdir()] == ["taskgate.yaml"]


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        (["audit", "verify"], 8),
        (["servers", "login", "unknown"], 2),
        (["scopes", "explain", "unknown"], 8),
        (["init"], 2),
        (["audit", "verify", "unexpected"], 2),
    ],
)
async def test_failed_commands_print_one_object_with_json(tmp_path: Path, words: list[str], exit_code: int) -> None:
    config = configuration(tmp_path)
    env = {"TASKGATE_STATE_DIR": str(tmp_path / "state")}
    code, out, err = await command(*words, "-c", config, "--json", env=env)
    found = json.loads(out)
    assert (code, found["exit_code"]) == (exit_code, exit_code), err
    assert found["error"]
    code, out, err = await command(*words, "-c", config, env=env)
    assert (code, out, found["error"] in err) == (exit_code, "", True)


async def test_check_fails_without_servers(tmp_path: Path) -> None:
    config = configuration(tmp_path, servers={})
    env = {"TASKGATE_STATE_DIR": str(tmp_path / "state")}
    code, out, output = await command("check", "-c", config, env=env)
    assert (code, out) == (2, "")
    assert "taskgate import" in output
    code, out, _ = await command("doctor", "-c", config, env=env)
    assert code == 9
    assert "no server is configured" in out


async def test_doctor_shows_what_a_program_wrote_to_stderr(tmp_path: Path) -> None:
    env = {"TASKGATE_STATE_DIR": str(tmp_path / "state")}
    code, out, _ = await command("doctor", "-c", configuration(tmp_path), "--json", env=env)
    assert code == 9
    findings = [json.loads(line) for line in out.splitlines()]
    (server,) = [finding for finding in findings if finding["about"] == "server a"]
    assert "stderr: no licence" in server["detail"]
    assert server["said"] == server["detail"], "the deprecated name"


async def doctor_on(folder: Path, program: str, env: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """What the doctor finds about a server that is this program, or about `more["about"]`."""
    about = more.pop("about", "server a")
    server = {"command": sys.executable, "args": ["-c", program], "env": more.get("env_of_server", {})}
    config = configuration(folder, servers={"a": server})
    variables = {"TASKGATE_STATE_DIR": str(folder / "state"), **(env or {})}
    _, out, _ = await command("doctor", "-c", config, "--json", env=variables)
    (found,) = [finding for finding in map(json.loads, out.splitlines()) if finding["about"] == about]
    return dict(found)


async def test_doctor_recognises_a_program_that_prints_to_stdout(tmp_path: Path) -> None:
    banner = "print('Welcome to my server', flush=True)\n"
    never = await doctor_on(tmp_path, banner + "import time; time.sleep(0.2)")
    assert (never["verdict"], never["fix"]) == ("bad", PRINTS)
    assert "Welcome to my server" in never["detail"]
    works = await doctor_on(
        tmp_path, banner + "import runpy; runpy.run_module('taskgate.demo.files', run_name='__main__')"
    )
    assert (works["verdict"], works["fix"]) == ("note", PRINTS)
    assert "Welcome to my server" in works["detail"]
    quiet = await doctor_on(tmp_path, "import runpy; runpy.run_module('taskgate.demo.files', run_name='__main__')")
    assert quiet["verdict"] == "ok"


@pytest.mark.parametrize("is_set", [False, True])
async def test_doctor_recognises_a_variable_that_the_program_was_not_given(tmp_path: Path, is_set: bool) -> None:
    program = "import sys; sys.exit('error: ACME_API_KEY is required')"
    found = await doctor_on(tmp_path, program, {"ACME_API_KEY": "k"} if is_set else None)
    assert (found["verdict"], "ACME_API_KEY" in found["fix"]) == ("bad", True)
    assert ("is set, but not passed" in found["fix"]) is is_set
    given = await doctor_on(tmp_path, program.replace("required", "wrong"), env_of_server={"ACME_API_KEY": "x"})
    assert "ACME_API_KEY" not in given["fix"]


async def test_doctor_recognises_a_variable_of_the_file_that_is_not_set(tmp_path: Path) -> None:
    found = await doctor_on(tmp_path, "pass", env_of_server={"KEY": "${ACME_API_KEY}"})
    assert (found["verdict"], "ACME_API_KEY" in found["fix"]) == ("bad", True)


async def test_doctor_recognises_a_state_folder_that_others_can_read(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    assert (await doctor_on(tmp_path, "pass", about="state folder"))["verdict"] == "ok"
    state.chmod(0o750)
    found = await doctor_on(tmp_path, "pass", about="state folder")
    assert (found["verdict"], "chmod 700" in found["fix"]) == ("bad", True)


async def test_check_warns_of_rules_that_never_apply(tmp_path: Path) -> None:
    rules = [
        {"match": "delete_*", "action": "approve"},
        {"match": "delete_file", "action": "deny"},
        {"match": "read_*", "action": "forward"},
    ]
    config = configuration(tmp_path, governance={"rules": rules})
    code, _, output = await command("check", "-c", config, env={"TASKGATE_STATE_DIR": str(tmp_path / "state")})
    warned = [line for line in output.splitlines() if "never applies" in line]
    assert (code, len(warned)) == (0, 1)
    assert "governance.rules[1]" in warned[0]
    assert "rules[0]" in warned[0]


async def test_rule_for_scripts_covers_only_rules_for_scripts(tmp_path: Path) -> None:
    rules = [
        {"match": "delete_*", "from": "script", "action": "approve"},
        {"match": "delete_*", "action": "deny"},
        {"match": "delete_file", "from": "script", "action": "deny"},
    ]
    config = configuration(tmp_path, governance={"rules": rules})
    code, _, output = await command("check", "-c", config, env={"TASKGATE_STATE_DIR": str(tmp_path / "state")})
    warned = [line for line in output.splitlines() if "never applies" in line]
    assert (code, len(warned)) == (0, 1)
    assert "governance.rules[2]" in warned[0]


@asynccontextmanager
async def behind_a_login() -> AsyncIterator[str]:
    """The address of a server that requires OAuth and names its authorization server."""
    base = ""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).split()[1].decode()
        issuer = {"authorization_endpoint": f"{base}/authorize", "token_endpoint": f"{base}/token"}
        pages = {
            "protected-resource": {
                "resource": f"{base}/mcp",
                "authorization_servers": [base],
                "scopes_supported": ["notes:read"],
            },
            "authorization-server": {
                "issuer": base,
                **issuer,
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
            },
        }
        page = next((page for name, page in pages.items() if f".well-known/oauth-{name}" in path), None)
        body = json.dumps(page).encode() if page is not None else b"{}"
        status = "200 OK" if page is not None else "401 Unauthorized"
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}WWW-Authenticate: Bearer\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield f"{base}/mcp"


async def test_doctor_names_the_login_that_a_server_requires(tmp_path: Path) -> None:
    env = {"TASKGATE_STATE_DIR": str(tmp_path / "state")}
    async with behind_a_login() as url:
        config = configuration(tmp_path, servers={"notes": {"url": url}})
        code, out, _ = await command("doctor", "-c", config, "--json", env=env)
    assert code == 9
    (server,) = [found for found in map(json.loads, out.splitlines()) if found["about"] == "server notes"]
    assert (
        f"requires OAuth tokens of {url.removesuffix('/mcp')} (scopes: notes:read)" in server["detail"] + server["fix"]
    )
    assert "taskgate servers login NAME" in server["detail"] + server["fix"]


DEMO_FILES = {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}


async def test_doctor_names_patterns_that_match_nothing(tmp_path: Path) -> None:
    rules = [{"match": each, "action": "deny"} for each in ("Read.*", "read_file", "off:read_.*")]
    demo = {**DEMO_FILES, "expose": {"mode": "blocklist", "tools": ["read_fil"]}}
    config = configuration(
        tmp_path, servers={"demo": demo, "off": {**DEMO_FILES, "enabled": False}}, governance={"rules": rules}
    )
    env = {"TASKGATE_STATE_DIR": str(tmp_path / "state")}
    code, out, err = await command("doctor", "-c", config, "--json", env=env)
    assert code == 0, err
    found = [each for each in map(json.loads, out.splitlines()) if "matches none" in each["detail"]]
    assert {each["about"]: (each["verdict"], each["fix"]) for each in found} == {
        "rules[0]": ("note", "To correct it, write read*."),
        "servers.demo.expose.tools[0]": ("note", "To correct it, write read_file."),
    }


async def test_doctor_names_no_pattern_while_a_server_is_down(tmp_path: Path) -> None:
    rules = [{"match": each, "action": "deny"} for each in ("Read.*", "demo:read_.*x")]
    needs = {**DEMO_FILES, "env": {"KEY": "${MISSING_KEY}"}}
    for other in (SERVER["a"], needs):
        config = configuration(tmp_path, servers={"demo": DEMO_FILES, "down": other}, governance={"rules": rules})
        env = {"TASKGATE_STATE_DIR": str(tmp_path / "state")}
        _, out, _ = await command("doctor", "-c", config, "--json", env=env)
        found = [each["about"] for each in map(json.loads, out.splitlines()) if "matches none" in each["detail"]]
        assert found == ["rules[1]"]


async def test_a_second_gateway_on_a_store_is_refused(tmp_path: Path) -> None:
    servers = {"demo": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}}
    async with running_gateway({"schema": 1, "servers": servers}, tmp_path) as first:
        code, output = await run_with_mistake(
            tmp_path, "serve", "-c", str(first.config), "--port", "0", state=str(first.state)
        )
    assert code == 2
    assert str(first.pid) in output


def test_an_old_python_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command_line.sys, "version_info", (3, 10, 4))  # type: ignore[attr-defined]
    with pytest.raises(SystemExit) as left:
        command_line.main()
    assert left.value.code == 2
    assert "needs Python 3.11 or newer" in capsys.readouterr().err


def test_an_internal_error_is_reported_as_such(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise KeyError("x")

    monkeypatch.setattr(root, "build_app", broken)
    monkeypatch.setattr(sys, "argv", ["taskgate", "status"])
    with pytest.raises(SystemExit) as left:
        command_line.main()
    assert left.value.code == 70
    assert "Internal error: KeyError" in capsys.readouterr().err
