"""A gateway that is stopped releases its sessions: the others continue them at once, while it still drains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import psycopg
import pytest
from tests.replicas.in_process import Setup, gateways, until

from taskgate.core.errors import GatewayFault
from taskgate.gateway.methods import shared_sessions
from taskgate.inbound.http.internal_listener import InternalListener
from taskgate.store.operations.shared_sessions import ReleaseSessions
from taskgate.store.postgres.presence import Presence
from taskgate.store.transaction import Transaction

SLOWLY = {"grace_ms": 60_000, "promote_after_ms": 60_000}


async def test_sessions_continue_at_another_gateway_while_their_gateway_drains(tmp_path: Path) -> None:
    limits = {"drain_timeout": "60s"}
    async with gateways(tmp_path, tasks=SLOWLY, limits=limits) as setup:
        a, b = setup.a.life, setup.b.life
        assert a is not None
        assert b is not None
        async with setup.a.caller(stateless=False) as idle, setup.a.caller(stateless=False) as busy:
            assert (await idle.request("logging/setLevel", {"level": "error"})).result == {}
            call = asyncio.create_task(busy.call("books__once", {"call": "slow", "seconds": 8}))
            await until(lambda: setup.ledger.count("slow"))
            a.stop()
            idle.url = setup.b.url
            assert "error" not in (await idle.call("books__once", {"call": "after"})).reply
            session = b.app.gateway.lifecycle.sessions.get(idle.headers["mcp-session-id"])
            assert session is not None, "adopted"
            assert (session.moves, session.log_level) == (1, "error")
            assert setup.a.store.is_fresh, "its lease still runs"
            assert not call.done(), "what is under way ends where it began"
            assert "error" not in (await asyncio.wait_for(call, 60)).reply
            busy.url = setup.b.url
            assert "error" not in (await busy.call("books__once", {"call": "then"})).reply
        assert setup.a.serving is not None
        await asyncio.wait_for(setup.a.serving, 60)
        assert [setup.ledger.count(name) for name in ("slow", "after", "then")] == [1, 1, 1]


def cannot_be_written(_operation: ReleaseSessions, _tx: Transaction) -> None:
    raise GatewayFault("store_unavailable", "The store cannot be written to.")


@contextmanager
def earlier_events(setup: Setup) -> Iterator[None]:
    """B has not looked at the leases since A gave its own back."""
    at_b, looks = setup.b.store.engine.presence, Presence.is_alive
    with patch.object(Presence, "is_alive", lambda self, owner: self is at_b or looks(self, owner)):
        yield


@pytest.mark.parametrize("released", [True, False], ids=["released", "only the lease"])
async def test_a_session_that_was_busy_until_its_gateway_ended_is_known_to_the_others_at_once(
    tmp_path: Path, *, released: bool
) -> None:
    """Also by a gateway that still takes the former home for alive, and if only the lease could be given back."""
    writes = ReleaseSessions.run if released else cannot_be_written
    async with gateways(tmp_path, tasks=SLOWLY, limits={"drain_timeout": "60s"}) as setup:
        with (
            patch.object(shared_sessions, "_IDLE_CHECK_S", 3600.0),
            patch.object(ReleaseSessions, "run", writes),
            earlier_events(setup),
        ):
            async with setup.a.caller(stateless=False) as busy:
                call = asyncio.create_task(busy.call("books__once", {"call": "slow", "seconds": 1}))
                await until(lambda: setup.ledger.count("slow"))
                await setup.a.stop()
                assert "error" not in (await asyncio.wait_for(call, 60)).reply
                busy.url = setup.b.url
                answer = await busy.call("books__once", {"call": "then"})
                assert "error" not in answer.reply, answer.reply
        assert [setup.ledger.count(name) for name in ("slow", "then")] == [1, 1]


async def test_a_request_that_is_sent_while_the_internal_address_closes_is_executed_elsewhere(tmp_path: Path) -> None:
    """A request that the ending gateway does not read any more would have an unknown outcome: before it closes its internal
    address it has released its sessions and answers only that they are not there."""
    closing, closes = asyncio.Event(), InternalListener.close
    may_close = asyncio.Event()

    async def close(self: InternalListener, within_s: float) -> None:
        closing.set()
        await may_close.wait()
        await closes(self, within_s)

    async with gateways(tmp_path, tasks=SLOWLY, limits={"drain_timeout": "300s"}) as setup:
        b = setup.b.life
        assert b is not None
        with patch.object(shared_sessions, "_IDLE_CHECK_S", 3600.0), patch.object(InternalListener, "close", close):
            async with setup.a.caller(stateless=False) as forwarded, setup.a.caller(stateless=False) as busy:
                call = asyncio.create_task(busy.call("books__once", {"call": "slow", "seconds": 1}))
                await until(lambda: setup.ledger.count("slow"))
                # The connection of a request that was answered stays open, and nothing waits for it.
                forwarded.url = setup.b.url
                assert "error" not in (await forwarded.call("books__once", {"call": "before"})).reply
                stopping = asyncio.create_task(setup.a.stop())
                assert "error" not in (await asyncio.wait_for(call, 60)).reply
                await asyncio.wait_for(closing.wait(), 30)  # not until an idle connection is closed
                busy.url = setup.b.url
                answer = await busy.call("books__once", {"call": "then"})
                assert "error" not in answer.reply, answer.reply
                session = b.app.gateway.lifecycle.sessions.get(busy.headers["mcp-session-id"])
                assert session is not None, "adopted"
                may_close.set()
                await asyncio.wait_for(stopping, 60)
        assert [setup.ledger.count(name) for name in ("before", "slow", "then")] == [1, 1, 1]


async def test_tasks_of_a_gateway_that_stopped_are_taken_over_without_waiting_for_its_lease(tmp_path: Path) -> None:
    rules = {"rules": [{"match": "books:once", "action": "approve"}]}
    async with gateways(tmp_path, governance=rules, tasks={"execute_on": "approval", **SLOWLY}) as setup:
        task_id = await setup.begin(setup.a, "once", "c1")
        owner = setup.a.store.ownership.owner
        await setup.a.stop()
        with psycopg.connect(setup.url) as connection:
            left = connection.execute("SELECT owner FROM replicas").fetchall()
        assert (owner,) not in left, "the lease was given back"
        (row,) = (await setup.b.operator("GET", "/api/approvals")).json()
        assert (await setup.b.operator("POST", f"/api/approvals/{row['id']}/approve", {})).status_code == 200
        assert (await setup.ended(setup.b, task_id))["status"] == "completed"
        assert setup.ledger.count("c1") == 1
