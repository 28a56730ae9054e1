"""Damaged rows that gateways on one store share: a gateway starts and works with the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
from tests.replicas.in_process import gateways
from tests.replicas.test_questions_across_gateways import FACADE, LONG_LEASE, accept, asked

from taskgate.assembly.damaged_rows import damaged_in_database

SERVER = "INSERT INTO dynamic_servers (name, scope, body) VALUES (%s, 'default', %s)"
QUESTION = "INSERT INTO open_questions (id, caller, home, expires_ms, body, answer) VALUES (%s, 'p', %s, %s, %s, %s)"
FAR = 2**53


async def test_gateways_start_and_share_questions_with_damaged_rows(tmp_path: Path) -> None:
    rows = [("broken", b"{"), ("relative", b'{"name":"relative","url":"//","command":null}')]
    async with gateways(tmp_path, scopes=FACADE, tasks=LONG_LEASE) as setup:
        home = setup.a.store.ownership.owner
        with psycopg.connect(setup.url, autocommit=True) as database:
            for row in rows:
                database.execute(SERVER, row)
            for name, answer in (("q1", None), ("page q2", None), ("q3", b"result not-a-word\n{}")):
                database.execute(QUESTION, (name, home, FAR, b"{", answer))
        named = {(row.table, row.key) for row in damaged_in_database(setup.url, setup.a.store.now_ms())}
        assert named >= {("dynamic_servers", "broken"), ("open_questions", "q1")}
        await setup.b.stop()
        await setup.b.start()
        async with setup.a.caller(stateless=False) as caller:
            call = asyncio.create_task(caller.call("books__once_ask", {"call": "c1"}))
            for question in await asked(setup.b, 2):
                reply = await setup.b.operator("POST", f"/api/questions/{question['request_id']}", accept("x"))
                assert reply.status_code == 200, reply.text
            assert "colour x" in str((await asyncio.wait_for(call, 60)).result)
        async with setup.b.caller(stateless=False) as caller:
            assert (await caller.call("books__read", {"call": "c2"})).result["content"]
