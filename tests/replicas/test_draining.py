"""A gateway that is stopped hands over what it holds: the others go on with it at once, while it still drains."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
from tests.replicas.in_process import gateways, until

SLOWLY = {"grace_ms": 60_000, "promote_after_ms": 60_000}


async def test_sessions_go_on_elsewhere_while_their_gateway_still_drains(tmp_path: Path) -> None:
    limits = {"drain_timeout": "60s"}
    async with gateways(tmp_path, tasks=SLOWLY, limits=limits) as stage:
        a, b = stage.a.life, stage.b.life
        assert a is not None
        assert b is not None
        async with stage.a.caller(stateless=False) as idle, stage.a.caller(stateless=False) as busy:
            assert (await idle.request("logging/setLevel", {"level": "error"})).result == {}
            call = asyncio.create_task(busy.call("books__once", {"call": "slow", "seconds": 3}))
            await until(lambda: stage.ledger.count("slow"))
            a.stop()
            idle.url = stage.b.url
            assert "error" not in (await idle.call("books__once", {"call": "after"})).reply
            session = b.app.gateway.context.sessions.get(idle.headers["mcp-session-id"])
            assert session is not None, "adopted"
            assert (session.moves, session.log_level) == (1, "error")
            assert stage.a.store.sessions.is_fresh, "its lease still runs"
            assert not call.done(), "what is under way ends where it began"
            assert "error" not in (await asyncio.wait_for(call, 60)).reply
            busy.url = stage.b.url
            assert "error" not in (await busy.call("books__once", {"call": "then"})).reply
        assert stage.a.serving is not None
        await asyncio.wait_for(stage.a.serving, 60)
        assert [stage.ledger.count(name) for name in ("slow", "after", "then")] == [1, 1, 1]


async def test_tasks_of_a_gateway_that_stopped_are_taken_over_without_waiting_for_its_lease(tmp_path: Path) -> None:
    rules = {"rules": [{"match": "books:once", "action": "approve"}]}
    async with gateways(tmp_path, governance=rules, tasks={"execute_on": "approval", **SLOWLY}) as stage:
        task_id = await stage.begin(stage.a, "once", "c1")
        owner = stage.a.store.ownership.owner
        await stage.a.stop()
        with psycopg.connect(stage.url) as connection:
            left = connection.execute("SELECT owner FROM replicas").fetchall()
        assert (owner,) not in left, "the lease was given back"
        (row,) = (await stage.b.operator("GET", "/api/approvals")).json()
        assert (await stage.b.operator("POST", f"/api/approvals/{row['id']}/approve", {})).status_code == 200
        assert (await stage.ended(stage.b, task_id))["status"] == "completed"
        assert stage.ledger.count("c1") == 1
