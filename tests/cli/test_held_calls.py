"""What `taskgate call` prints while its call waits for approval, and what the other commands print about that call."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.harness.commands import command
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.narrow import present
from tests.harness.programs import run_to_end

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
APPROVER = "bob-token-0123456789abcdef"
CALLER = "ann-token-0123456789abcdef"
CONFIG: dict[str, Any] = {
    "schema": 1,
    "profile": "production",
    "servers": {"demo": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}},
    "governance": {"rules": [{"match": "read_file", "action": "approve"}]},
    "auth": {"anonymous": "default"},
    "tasks": {"heartbeat_ms": 3_600_000},
    "tokens": [
        {"id": "ann", "sha256": hashlib.sha256(CALLER.encode()).hexdigest()},
        {
            "id": "bob",
            "sha256": hashlib.sha256(APPROVER.encode()).hexdigest(),
            "roles": ["approver"],
            "may_call": False,
        },
    ],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with running_gateway(CONFIG, tmp_path_factory.mktemp("gateway")) as made:
        yield made


def environment(gateway: Gateway, token: str = "") -> dict[str, str]:
    return {"TASKGATE_STATE_DIR": str(gateway.state), "TASKGATE_URL": gateway.base, "TASKGATE_TOKEN": token}


async def run(gateway: Gateway, *words: str, token: str = "") -> tuple[int, str, str]:
    return await command(*words, env=environment(gateway, token))


async def waiting_approval(gateway: Gateway) -> dict[str, Any]:
    async with asyncio.timeout(90):
        while True:
            _, out, _ = await run(gateway, "approvals", "list", "--json")
            if out.strip():
                row: dict[str, Any] = json.loads(out.splitlines()[0])
                return row
            await asyncio.sleep(0.2)


async def caller_present(gateway: Gateway, approval_id: str) -> None:
    """Wait until the caller follows its task, so that an approval starts the call."""
    async with asyncio.timeout(90):
        while True:
            _, out, _ = await run(gateway, "approvals", "show", approval_id, "--json")
            if json.loads(out)["starts_on_approval"]:
                return
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("generation", ["stateless", "stateful"])
async def test_held_call_names_its_task_its_page_and_a_command_that_works(gateway: Gateway, generation: str) -> None:
    words = (
        "call",
        "demo__read_file",
        json.dumps({"name": "no-such-file"}),
        "--generation",
        generation,
        "--task",
        "--watch",
    )
    program = [sys.executable, "-m", "taskgate", *words]
    calling = asyncio.create_task(run_to_end(program, environment(gateway), within=200))
    row = await waiting_approval(gateway)
    # The operator made the call, so its token is refused; the answer names a way that works.
    code, _, err = await run(gateway, "approvals", "approve", row["id"])
    assert code == 4
    assert "taskgate approvals login" in err
    assert row["url"] in err
    await caller_present(gateway, row["id"])
    code, out, _ = await run(gateway, "approvals", "approve", row["id"], "--json", token=APPROVER)
    assert (code, json.loads(out)["starts"]) == (0, True)
    code, out, err = await calling
    assert row["task_id"] in err
    assert row["url"] in err
    assert "taskgate approvals login" in err
    assert "no-such-file" in out
    # The operator finds the result of every listed task.
    code, again, _ = await run(gateway, "tasks", "result", row["task_id"][-10:])
    assert again == out


async def test_plain_stateful_call_names_its_task_and_page_as_soon_as_it_is_held(gateway: Gateway) -> None:
    words = ("call", "demo__read_file", json.dumps({"name": "no-such-file"}), "--generation", "stateful")
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "taskgate", *words, "--json"),
        env={**os.environ, **environment(gateway)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        row = await waiting_approval(gateway)
        # The approval is still open, and heartbeats of this gateway are an hour apart.
        async with asyncio.timeout(90):
            first = json.loads(await present(program.stdout).readline())
        assert (first["event"], first["taskId"], first["url"]) == ("approval_needed", row["task_id"], row["url"])
        assert (await run(gateway, "approvals", "approve", row["id"], token=APPROVER))[0] == 0
        async with asyncio.timeout(90):
            rest, _ = await program.communicate()
        assert b"no-such-file" in rest
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()


async def test_held_call_of_another_caller_names_the_command_that_approves(gateway: Gateway) -> None:
    words = ("call", "demo__read_file", json.dumps({"name": "no-such-file"}), "--json", "--task")
    code, out, _ = await run(gateway, *words, token=CALLER)
    assert code == 0
    needed, created = (json.loads(line) for line in out.splitlines())
    assert (needed["event"], needed["taskId"]) == ("approval_needed", created["taskId"])
    approving = needed["command"].split()
    assert approving[:3] == ["taskgate", "approvals", "approve"]
    code, _, err = await run(gateway, "tasks", "result", created["taskId"], "--timeout", "0.1")
    assert code == 5, err
    assert (await run(gateway, *approving[1:], token=APPROVER))[0] == 0


async def test_grant_is_listed_and_revoked_from_the_command_line(gateway: Gateway) -> None:
    call = ("call", "demo__read_file", json.dumps({"name": "no-such-file"}), "--json", "--task")
    _, out, _ = await run(gateway, *call, token=CALLER)
    approval = json.loads(out.splitlines()[0])["command"].split()[3]
    granting = ("approvals", "approve", approval, "--grant", "30", "--json")
    code, out, err = await run(gateway, *granting, token=APPROVER)
    assert code == 0, err
    grant_id = json.loads(out)["grant"]["id"]

    code, out, _ = await run(gateway, "grants", "list", "--json")
    (row,) = [json.loads(line) for line in out.splitlines()]
    assert (code, row["id"], row["principal"], row["tool"]) == (0, grant_id, "ann", "read_file")
    code, out, _ = await run(gateway, "grants", "list")
    assert code == 0
    assert {grant_id, "ann", "read_file", "any", "bob"} <= set(out.split())
    code, covered, _ = await run(gateway, *call, token=CALLER)
    assert "approval_needed" not in covered

    # A caller without a role, an id that does not exist, and an id that is not a grant.
    assert (await run(gateway, "grants", "revoke", grant_id, token=CALLER))[0] == 4
    assert (await run(gateway, "grants", "revoke", "gr_" + "0" * 26))[0] == 8
    assert (await run(gateway, "grants", "revoke", "zzz"))[0] == 8
    code, out, err = await run(gateway, "grants", "revoke", grant_id[-8:], "--json", token=APPROVER)
    assert code == 0, err
    assert (json.loads(out)["id"], json.loads(out)["revoked_by"]) == (grant_id, "bob")

    assert (await run(gateway, "grants", "list"))[:2] == (0, "")
    code, out, _ = await run(gateway, "grants", "list", "--all", "--json")
    assert [json.loads(line)["revoked_by"] for line in out.splitlines()] == ["bob"]
    _, held, _ = await run(gateway, *call, token=CALLER)
    assert json.loads(held.splitlines()[0])["event"] == "approval_needed"
