"""`taskgate history`, and the commands about tasks that are no longer stored, against a running gateway."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.cli.test_operator_commands import run, until
from tests.harness.gateway import Gateway, running_gateway

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
SERVERS = {"demo": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}}
SHORT = {"default_ttl_ms": 500, "max_ttl_ms": 500, "keep_result_ms": 1, "sweep_interval_ms": 200}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    config = {"schema": 1, "servers": SERVERS, "tasks": SHORT}
    async with running_gateway(config, tmp_path_factory.mktemp("gateway")) as made:
        yield made


async def test_history_is_searched_printed_and_exported(gateway: Gateway) -> None:
    await run(gateway, "call", "demo__read_file", '{"path": "missing.txt"}')
    assert "read_file" in await until(gateway, "history", "--tool", "read_file")
    (row, *_) = map(json.loads, (await until(gateway, "history", "--json")).splitlines())
    assert (row["tool"], row["outcome"]) == ("read_file", "tool_error")
    found = await until(gateway, "history", "--csv", "--outcome", "bad", "--text", "read")
    assert found.startswith('"id","kind","outcome",')
    code, out, err = await run(gateway, "history", "--tool", "nothing")
    assert (code, out, bool(err)) == (0, "", True)
    code, _, err = await run(gateway, "history", "--outcome", "purple")
    assert (code != 0, "tool_error" in err) == (True, True)


async def test_finished_task_is_run_again(tmp_path: Path) -> None:
    async with running_gateway({"schema": 1, "servers": SERVERS}, tmp_path) as made:
        await run(made, "call", "demo__list_files", "{}", "--task")
        (row, *_) = map(json.loads, (await until(made, "history", "--json", "--tool", "list_files")).splitlines())
        code, out, err = await run(made, "tasks", "rerun", row["id"], "--json")
        assert code == 0, err
        again = json.loads(out)["task_id"]
        assert again not in (None, row["id"])
        code, out, err = await run(made, "tasks", "show", again, "--json")
        assert code == 0, err
        shown = json.loads(out)
        assert (shown["rerun_of"], shown["name"], shown["arguments"]) == (row["id"], "list_files", {})


async def test_finished_task_is_listed_shown_and_not_run_again_after_it_is_gone(gateway: Gateway) -> None:
    await run(gateway, "call", "demo__list_files", "{}", "--task")
    (row, *_) = map(json.loads, (await until(gateway, "history", "--json", "--tool", "list_files")).splitlines())
    task_id = row["id"]
    assert task_id.startswith("tg_")
    async with asyncio.timeout(120):
        while True:
            code, out, _ = await run(gateway, "tasks", "show", task_id, "--json")
            assert code == 0
            shown = json.loads(out)
            if not shown.get("stored", True):
                break
            await asyncio.sleep(0.5)
    assert (shown["state"], shown["outcome"]) == ("completed", "ok")
    code, out, _ = await run(gateway, "tasks", "list", "--all", "--since", "24h")
    assert (code, task_id in out) == (0, True)
    code, _, err = await run(gateway, "tasks", "rerun", task_id)
    assert code != 0
    assert err
