"""A pending approval is announced to channels once, whatever the number of gateways, and can be decided at any of them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from tests.channels.receiver_double import Receiver, receiver
from tests.harness.plain_http import NO_TLS
from tests.replicas.in_process import Setup, gateways, gateways_wired, until

from taskgate.channels.webhook_signature import key_of, signed_headers
from taskgate.core.errors import GatewayFault
from taskgate.store.operation import Query
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.operations.upkeep import ClaimedTasks
from taskgate.store.postgres.presence import Presence
from taskgate.store.postgres.store import PostgresStore

SECRET = "whsec_" + base64.b64encode(b"a key of thirty-two bytes, about").decode()
RULES = {"rules": [{"match": "books:once", "action": "approve", "approval": "ops"}]}
SLOWLY = {"execute_on": "approval", "grace_ms": 60_000, "promote_after_ms": 60_000}


def workflows(there: Receiver) -> dict[str, Any]:
    return {"ops": {"channels": ["inbox", {"type": "webhook", "url": there.url, "secret": SECRET}]}}


async def check_announced_once(there: Receiver) -> None:
    """The end is announced, and nothing twice: each state and number of votes has its own id."""
    await until(lambda: len(there.got) >= 2)
    await asyncio.sleep(0.5)  # what is too much would come now
    ids = [headers["webhook-id"] for headers in there.headers]
    assert len(ids) == len(set(ids)), ids
    assert [message["type"] for message in there.got].count("approval.requested") == 1


async def called_back(setup: Setup, index: int, asked: dict[str, Any]) -> int:
    """The signed answer to a question, at the address of that gateway."""
    payload = {
        "approval_id": asked["approval"]["id"],
        "verdict": "approve",
        "approver": "operator",
        "arguments_digest": asked["approval"]["arguments_digest"],
    }
    body = json.dumps(payload).encode()
    path = asked["callback_url"].split("/", 3)[3]
    async with httpx2.AsyncClient(timeout=60, verify=NO_TLS) as http:
        headers = signed_headers(key_of(SECRET), "m1", int(time.time()), body)
        reply = await http.post(f"{setup.gateways[index].base}/{path}", content=body, headers=headers)
    return reply.status_code


async def test_an_approval_is_announced_once_also_when_gateways_start_and_stop(tmp_path: Path) -> None:
    async with (
        receiver(key_of(SECRET)) as there,
        gateways(tmp_path, governance=RULES, approval=workflows(there), tasks=SLOWLY) as setup,
    ):
        task_id = await setup.begin(setup.a, "once", "c1")
        await until(lambda: there.got)
        await setup.b.stop()
        await setup.b.start()
        asked = there.got[0]
        assert await called_back(setup, 1, asked) == 200, "at another gateway than the one that asked"
        assert (await setup.ended(setup.b, task_id))["status"] == "completed"
        await check_announced_once(there)
        assert setup.ledger.count("c1") == 1


async def test_announcements_of_an_ended_gateway_are_updated_by_another(tmp_path: Path) -> None:
    async with (
        receiver(key_of(SECRET)) as there,
        gateways(tmp_path, governance=RULES, approval=workflows(there), tasks=SLOWLY) as setup,
    ):
        task_id = await setup.begin(setup.a, "once", "c1")
        await until(lambda: there.got)
        await setup.a.stop()
        owner = setup.b.store.ownership.owner

        async def taken() -> bool:
            task = await setup.b.store.ask(FindTask(task_id))
            return task is not None and task.owner == owner

        await until(taken)
        assert await called_back(setup, 1, there.got[0]) == 200
        assert (await setup.ended(setup.b, task_id))["status"] == "completed"
        await check_announced_once(there)
        assert setup.ledger.count("c1") == 1


async def test_a_vote_on_b_that_a_missed_is_found_when_its_connection_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call runs and people see how it was decided, although the announcement is lost and the first look for it fails."""
    async with (
        receiver(key_of(SECRET)) as there,
        gateways_wired(tmp_path, governance=RULES, approval=workflows(there), tasks=SLOWLY) as (setup, wire),
    ):
        task_id = await setup.begin(setup.a, "once", "c1")
        await until(lambda: there.got)
        # A cannot renew its lease meanwhile. Where that takes longer than a lease, B would find A dead and run the call itself.
        monkeypatch.setattr(Presence, "may_declare_dead", False)
        failed = fails_once(monkeypatch, setup.a.store, ClaimedTasks)
        wire.refuses = True
        wire.cut()
        await until(lambda: setup.a.store.problem)
        assert await called_back(setup, 1, there.got[0]) == 200
        wire.refuses = False
        await until(lambda: setup.ledger.count("c1"))
        assert failed == [1]
        assert (await setup.ended(setup.b, task_id))["status"] == "completed"
        await check_announced_once(there)
        assert setup.ledger.count("c1") == 1


def fails_once(monkeypatch: pytest.MonkeyPatch, store: PostgresStore, kind: type[Query[Any]]) -> list[int]:
    """Counts how often it failed."""
    real, failed = store.ask, list[int]()

    async def once(query: Query[Any]) -> Any:
        if isinstance(query, kind) and not failed:
            failed.append(1)
            raise GatewayFault("store_unavailable", "broken by the test")
        return await real(query)

    monkeypatch.setattr(store, "ask", once)
    return failed


NOTES = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    found = [{"uri": "note://one", "name": "one"}]
    result = {"resources": found}
    if message["method"] == "initialize":
        info = {"name": "notes", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"resources": {}}, "serverInfo": info}
    elif message["method"] == "resources/read":
        result = {"contents": [{"uri": "note://one", "text": "read"}]}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
TOKEN = "token-of-agent-0123456789"
READING: dict[str, Any] = {
    "servers": {"notes": {"command": sys.executable, "args": ["-c", NOTES]}},
    "governance": {"rules": [{"match": "resource:note:*", "action": "approve", "approval": "ops"}]},
    "tokens": [{"id": "agent", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}],
}


async def test_a_held_request_of_an_ended_gateway_is_announced_once_and_continues_at_another(
    tmp_path: Path,
) -> None:
    """It is no task that another gateway takes over: its caller repeats it at any gateway and waits for the same decision."""
    async with (
        receiver(key_of(SECRET)) as there,
        gateways(tmp_path, number=3, approval=workflows(there), limits={"drain_timeout": "1s"}, **READING) as setup,
    ):
        first, second = (one.caller(headers={"authorization": f"Bearer {TOKEN}"}) for one in setup.gateways[:2])
        asked = asyncio.create_task(first.request("resources/read", {"uri": "note://one"}))
        await until(lambda: there.got)
        owner = setup.a.store.ownership.owner
        assert owners_of_approvals(setup) == [owner]
        await setup.a.stop()
        await asyncio.gather(asked, return_exceptions=True)
        await until(lambda: owners_of_approvals(setup) != [owner])
        pending = await second.request("resources/read", {"uri": "note://one"})
        assert pending.error["data"]["error_type"] == "approval_pending", pending.reply
        assert len(owners_of_approvals(setup)) == 1, "no approval was requested twice"
        assert await called_back(setup, 2, there.got[0]) == 200
        read = await second.request("resources/read", {"uri": "note://one"})
        assert read.result["contents"][0]["text"] == "read"
        await check_announced_once(there)
        for reader in (first, second):
            await reader.http.aclose()


def owners_of_approvals(setup: Setup) -> list[str]:
    with psycopg.connect(setup.url) as database:
        return [owner for (owner,) in database.execute("SELECT owner FROM approvals")]
