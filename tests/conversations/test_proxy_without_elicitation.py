"""A FastMCP proxy whose client supports no elicitation: a held call still returns the task, and its retry is not a second call."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.harness.gateway import running_gateway
from tests.harness.peers import interpreter
from tests.harness.programs import run_to_end

pytestmark = [pytest.mark.timeout(300), pytest.mark.peers("fastmcp")]
PROXY = Path(__file__).parents[1] / "peers" / "proxy_fastmcp.py"
TOKEN = "ann-token-0123456789abcdef"
CONFIG: dict[str, Any] = {
    "schema": 1,
    "servers": {"demo": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}},
    "governance": {"rules": [{"match": "read_file", "action": "approve"}]},
    "tasks": {"promote_after_ms": 1000},
    "auth": {"anonymous": "default"},
    "tokens": [{"id": "ann", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}],
}


async def outcomes(folder: Path, token: str) -> list[dict[str, str]]:
    """The outcomes of two equal calls and a different one."""
    calls = [json.dumps({"name": name}) for name in ("one.txt", "one.txt", "two.txt")]
    async with running_gateway(CONFIG, folder) as gateway:
        program = [str(interpreter("fastmcp")), str(PROXY), gateway.url, token, "demo__read_file", *calls]
        code, out, err = await run_to_end(program, {}, within=200)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def task_in(outcome: dict[str, str]) -> str:
    return "tg_" + outcome["text"].partition("tg_")[2][:26]


async def test_retry_of_a_caller_with_a_token_joins_and_gives_the_task(tmp_path: Path) -> None:
    lost, again, other = await outcomes(tmp_path, TOKEN)
    assert "error" in lost
    assert again["text"].count(task_in(again)) == 2
    assert "taskgate/idempotencyKey" in again["text"]
    assert task_in(other) != task_in(again)


async def test_anonymous_caller_gets_the_task_at_once(tmp_path: Path) -> None:
    tasks = [task_in(outcome) for outcome in await outcomes(tmp_path, "")]
    assert len(set(tasks)) == 3
