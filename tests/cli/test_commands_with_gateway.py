"""The output of commands that use a running gateway, for scripts and people."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import run_to_end

from taskgate.client import connect

ANN = "ann-token-0123456789abcdef"
VIEWER = "vic-token-0123456789abcdef"
pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    servers = {"demo": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}}
    tokens: list[dict[str, Any]] = [{"id": "ann", "sha256": hashlib.sha256(ANN.encode()).hexdigest()}]
    tokens += [{"id": "vic", "sha256": hashlib.sha256(VIEWER.encode()).hexdigest(), "roles": ["viewer"]}]
    config = {"schema": 1, "servers": servers, "tokens": tokens}
    async with running_gateway(config, tmp_path_factory.mktemp("gateway")) as made:
        yield made


async def run(gateway: Gateway, *words: str) -> tuple[int, str, str]:
    """Run a command as a script does: no terminal, no address, only the state folder."""
    env = {"TASKGATE_STATE_DIR": str(gateway.state)}
    return await run_to_end([sys.executable, "-m", "taskgate", *words], env, within=90)


async def cancel_all(gateway: Gateway) -> None:
    """With two calls open, a question of a stdio server cannot be assigned to one of them."""
    headers = {"authorization": f"Bearer {(gateway.state / 'operator-token').read_text().strip()}"}
    async with httpx2.AsyncClient(base_url=gateway.base, headers=headers, timeout=90) as http:
        for task in (await http.get("/api/v1/tasks?state=open")).json()["tasks"]:
            await http.post(f"/api/v1/tasks/{task['id']}/cancel", json={})


async def test_doctor_recognises_the_gateway_that_uses_the_port(gateway: Gateway, tmp_path: Path) -> None:
    config = tmp_path / "taskgate.yaml"
    config.write_text(json.dumps({"schema": 1, "listen": {"port": gateway.port}, "servers": {}}))
    _, out, _ = await run(gateway, "doctor", "--json", "-c", str(config))
    (port,) = [found for found in map(json.loads, out.splitlines()) if found["about"] == "port"]
    assert (port["verdict"], port["detail"]) == ("ok", f"{gateway.port} is used by the running gateway")
    _, out, _ = await run_to_end(
        [sys.executable, "-m", "taskgate", "doctor", "--json", "-c", str(config)], {"TASKGATE_STATE_DIR": str(tmp_path)}
    )
    (port,) = [found for found in map(json.loads, out.splitlines()) if found["about"] == "port"]
    assert port["verdict"] == "note"


@pytest.mark.parametrize("generation", ["stateful", "stateless"])
async def test_an_unanswered_question_ends_a_watched_task_with_code_4(gateway: Gateway, generation: str) -> None:
    code, out, err = await run(gateway, "call", "demo__greet", "--task", "--watch", "--generation", generation)
    assert (code, out) == (4, "")
    assert "waits for an answer" in err
    assert "What is your name?" in err
    await cancel_all(gateway)
    code, out, _ = await run(gateway, "call", "demo__greet", "--task", "--watch", "--json")
    assert code == 4
    assert json.loads(out.splitlines()[-1])["event"] == "input_needed"
    await cancel_all(gateway)
    code, out, _ = await run(gateway, "call", "demo__greet", "--task", "--watch", "--answer", '{"name": "Ada"}')
    assert code == 0
    assert "Ada" in out


@pytest.mark.parametrize("who", [(), ("--token", ANN)], ids=["the operator", "a caller"])
async def test_a_watched_task_shows_questions_that_are_not_tied_to_a_call(
    gateway: Gateway, who: tuple[str, ...]
) -> None:
    """Two calls are open on one process: the question is shown as the server's, with the command that answers it."""
    await cancel_all(gateway)
    code, out, _ = await run(gateway, "call", "demo__slow_report", '{"seconds": 600}', "--task", *who)
    other = out.strip()
    words = ["call", "demo__greet", "--task", "--watch", "--json", "--timeout", "90", *who]
    watching = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "taskgate", *words),
        env={**os.environ, "TASKGATE_STATE_DIR": str(gateway.state)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert watching.stdout is not None
        async with asyncio.timeout(90):
            asked: dict[str, Any] = {}
            while asked.get("event") != "server_question":
                asked = json.loads(await watching.stdout.readline())
        assert (asked["server"], asked["params"]["message"]) == ("demo", "What is your name?")
        assert not {"taskId", "task_id"} & asked.keys()
        assert other not in json.dumps(asked)
        code, _, err = await run(gateway, "questions", "answer", asked["request_id"], '{"name": "Ada"}', *who)
        assert code == 0, err
        rest, _ = await asyncio.wait_for(watching.communicate(), 90)
        assert (watching.returncode, b"Ada" in rest) == (0, True)
    finally:
        if watching.returncode is None:
            watching.kill()
            await watching.wait()
    await cancel_all(gateway)


async def test_tools_are_listed_as_a_client_gets_them(gateway: Gateway) -> None:
    async with connect(gateway.url, token=ANN) as session:
        expected = [tool.name for tool in await session.list_tools()]
    code, out, _ = await run(gateway, "tools", "--json")
    names = [json.loads(line)["name"] for line in out.splitlines()]
    assert (code, names) == (0, expected)
    assert "get_task" in names
    code, out, _ = await run(gateway, "tools", "--only-servers", "--json")
    names = [json.loads(line)["name"] for line in out.splitlines()]
    assert names
    assert all(name.startswith("demo__") for name in names)


async def test_a_misspelt_tool_error_suggests_the_right_name(gateway: Gateway) -> None:
    code, _, err = await run(gateway, "call", "demo__list_fiels")
    assert code == 8
    assert "Did you mean demo__list_files" in err
    _, _, err = await run(gateway, "call", "list_files")
    assert "demo__list_files" in err


async def test_commands_find_the_running_gateway(gateway: Gateway) -> None:
    code, out, _ = await run(gateway, "status", "--json")
    assert code == 0
    (record,) = map(json.loads, out.splitlines())
    assert (record["url"], record["config"], record["kind"]) == (gateway.base, str(gateway.config), "serve")
    assert "key" not in record
    assert (await run(gateway, "approvals", "list"))[0] == 0
    code, _, _ = await run(gateway, "stop")
    assert code == 8, "what a person started is not ended by `stop`"
    assert Path(f"/proc/{gateway.pid}").exists()


async def test_an_operator_filters_tasks(gateway: Gateway) -> None:
    code, out, err = await run(gateway, "call", "demo__slow_report", '{"seconds": 0.1}', "--task")
    assert code == 0, err
    task_id = out.split()[0]
    finding = (
        "--all",
        "--server",
        "demo",
        "--tool",
        "slow",
        "--since",
        "1h",
        "--text",
        task_id,
    )
    code, out, err = await run(gateway, "tasks", "list", *finding, "--json")
    assert code == 0, err
    assert [json.loads(line)["id"] for line in out.splitlines()] == [task_id]
    code, out, err = await run(gateway, "tasks", "list", "--state", "failed", "--in-scope", "elsewhere")
    assert (code, out, "No matching tasks" in err) == (0, "", True)
    code, out, err = await run(gateway, "tasks", "list", "--all", "--text", task_id, "--json", "--token", ANN)
    assert (code, out) == (0, ""), "who only calls finds only what is theirs"
    code, out, err = await run(gateway, "tasks", "list", "--all", "--text", task_id, "--json", "--token", VIEWER)
    assert [json.loads(line)["id"] for line in out.splitlines()] == [task_id], "a role is enough, wherever one sits"
    code, _, err = await run(gateway, "tasks", "list", "--since", "yesterday")
    assert (code != 0, "since must be like" in err) == (True, True)
