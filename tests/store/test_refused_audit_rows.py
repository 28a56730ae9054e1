"""An audit table that refuses rows: no task is accepted without its audit row, and its caller learns that nothing ran."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest
from tests.harness.postgres import migrated_url
from tests.store.test_postgres_store import a_call
from tests.virtual_time import TASKS_EXTENSION, Call, Gateway, Upstream, virtual_time
from tests.virtual_time.callers import TASKS

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import Executed, GatewayFault
from taskgate.store.operations.tasks import Accept

REFUSE = "CREATE TRIGGER refused BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'the table is read-only'); END"


@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("how", ["task", "keyed", "held"])
@virtual_time
async def test_call_that_needs_an_audit_row_is_refused_and_not_executed(generation: str, how: str) -> None:
    server = Upstream("2025")

    @server.tool("pay")
    async def pay(_call: Call) -> str:
        return "paid"

    rules = [{"match": "pay", "action": "approve", "approval": "ops"}] if how == "held" else []
    config = {"governance": {"rules": rules}, "approval": {"ops": {"channels": ["inbox"], "timeout": "10m"}}}
    async with Gateway(config, {"s": server}) as gate:
        caller = await gate.caller(generation, capabilities=TASKS if generation == "2025" else TASKS_EXTENSION)
        (path,) = gate.state.glob("*.db")
        with sqlite3.connect(path) as direct:
            direct.execute(REFUSE)
        more: dict[str, Any] = {"_meta": {"taskgate/idempotencyKey": "k"}} if how == "keyed" else {}
        if how != "keyed" and generation == "2025":
            more = {"task": {}}
        elif how == "task":
            more = {"_meta": {"taskgate/task": True}}
        data = (await caller.call("s__pay", **more)).last["error"]["data"]
        assert (data["error_type"], data["executed"]) == ("store_unavailable", "no")
        assert server.count("pay") == 0
        assert (await gate.operator("GET", "/api/v1/tasks")).json()["tasks"] == []
        with sqlite3.connect(path) as direct:
            direct.execute("DROP TRIGGER refused")
        assert "error" not in (await caller.call("s__pay", **more)).last


async def test_postgres_reports_a_refused_audit_row_as_unavailable() -> None:
    psycopg = pytest.importorskip("psycopg", reason="PostgreSQL tests need `psycopg`: pip install 'taskgate[postgres]'")
    from taskgate.store.postgres.store import open_store

    url = migrated_url()
    with psycopg.connect(url, autocommit=True) as direct:
        direct.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN RAISE EXCEPTION ''the table is read-only''; END'"
        )
        direct.execute("CREATE TRIGGER refused BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION refuse()")
    store = open_store(url)
    try:
        async with asyncio.timeout(120):
            with pytest.raises(GatewayFault) as refused:
                await store.do(Accept(a_call(), audit=AuditEntry(0, "accepted")))
        assert (refused.value.error_type, refused.value.executed) == ("store_unavailable", Executed.NO)
        assert "read-only" in refused.value.message
    finally:
        await store.close()
