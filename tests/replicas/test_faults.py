"""What goes wrong around gateways that share a database: one is paused, the database goes away, connections are cut."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import conninfo
from tests.harness.raw_client import RawClient
from tests.replicas.test_two_gateways import DEADLINE_S, OVER, TASKS, Pair, operator, pair


class Database:
    """The server behind a gateway's store; it can be made to refuse all connections."""

    def __init__(self, both: Pair) -> None:
        url = next(
            line.split("url:", 1)[1].strip()
            for line in both.a.config.read_text().splitlines()
            if "url: postgresql" in line
        )
        self.name = urlsplit(url).path.lstrip("/")
        options = conninfo.conninfo_to_dict(url)
        same: dict[str, Any] = {key: value for key, value in options.items() if key not in ("dbname", "options")}
        self._server = conninfo.make_conninfo(**same, dbname="postgres")

    def go_away(self) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(f'ALTER DATABASE "{self.name}" WITH ALLOW_CONNECTIONS false')
        self.cut()

    def come_back(self) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(f'ALTER DATABASE "{self.name}" WITH ALLOW_CONNECTIONS true')

    def cut(self) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [self.name])


async def in_the_end(both: Pair, call: str) -> str:
    """A task created at A as soon as tasks are accepted again; each refusal must state that nothing was executed, correctly."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await both.begin(both.a, "once", call)
            except AssertionError as error:
                refused = str(error)
            assert "store_unavailable" in refused
            assert both.ledger.count(call) == 0
            await asyncio.sleep(0.1)


TAKEN_OVER = "tasks of a gateway that died were taken over"


def check_ended_well(both: Pair, call: str, shown: dict[str, Any]) -> None:
    """Done once. On a busy machine a lease may run out by itself: then its owner counts as dead, and a call that may not be
    sent again reports its outcome as unknown, which is correct.
    """
    assert both.ledger.count(call) == 1
    if shown["status"] != "completed":
        assert "may or may not have" in json.dumps(shown), shown
        assert TAKEN_OVER in both.a.log + both.b.log, shown


@pytest.mark.parametrize("at_least_s", [0, pytest.param(30, marks=pytest.mark.long)])
async def test_a_gateway_paused_for_longer_than_its_lease_runs_nothing_twice(tmp_path: Path, at_least_s: float) -> None:
    async with pair(tmp_path) as both:
        task_id = await both.begin(both.a, "once", "c1", seconds=8)
        await both.began("c1")
        os.kill(both.a.pid, signal.SIGSTOP)
        try:
            shown = await both.until(both.b, task_id, *OVER)
            await asyncio.sleep(at_least_s)  # the length of the fault, not a wait for something to happen
        finally:
            os.kill(both.a.pid, signal.SIGCONT)
        assert shown["status"] == "failed"
        # The paused one wakes up, and its server answers it: that is too late, and the ending stays the same.
        async with asyncio.timeout(DEADLINE_S):
            while not await both.a.is_ready() or both.ledger.executions()["c1"][0].ended is None:
                await asyncio.sleep(0.1)
        # It goes on under a new fence.
        another = await in_the_end(both, "c2")
        assert (await both.until(both.b, another, *OVER))["status"] == "completed"
        assert await both.task_shown_by(both.b, task_id) == shown
        assert both.ledger.count("c1") == 1


async def test_without_the_database_durable_calls_fail_and_plain_calls_continue(tmp_path: Path) -> None:
    async with pair(tmp_path, passthrough=True) as both:
        database = Database(both)
        async with RawClient(both.a.url, stateless=True) as caller:
            assert "result" in (await caller.call("books__read", {"call": "before"})).reply
            database.go_away()
            try:
                for number in range(20):
                    answer = await caller.call("books__read", {"call": f"plain{number}"})
                    assert "result" in answer.reply, answer.reply
                async with RawClient(both.a.url, stateless=True, capabilities=TASKS) as keyed:
                    meta = {"taskgate/idempotencyKey": "k1"}
                    refused = await keyed.call("books__once", {"call": "durable"}, _meta=meta)
                assert refused.error["data"]["error_type"] == "store_unavailable"
                assert refused.error["data"]["executed"] == "no"
                ready = await operator(both.a, "GET", "/ready")
                assert ready.status_code == 200, "a balancer must go on sending plain calls"
                assert "tasks" in ready.json()["degraded"]
                assert ready.json()["store"]
            finally:
                database.come_back()
        # Nothing is waited for: the call itself waits for the connection.
        task_id = await both.begin(both.a, "once", "after")
        check_ended_well(both, "after", await both.until(both.b, task_id, *OVER))
        assert both.ledger.count("durable") == 0


async def test_plain_calls_end_when_the_database_has_confirmed_nothing_for_five_seconds(tmp_path: Path) -> None:
    """Grants and pins in the memory of this gateway may be outdated: another one may have revoked them."""
    async with pair(tmp_path) as both:
        database = Database(both)
        async with RawClient(both.a.url, stateless=True) as caller:
            database.go_away()
            try:
                async with asyncio.timeout(DEADLINE_S):
                    number = 0
                    while "result" in (answer := await caller.call("books__read", {"call": f"p{number}"})).reply:
                        number += 1
                        await asyncio.sleep(0.1)
                assert answer.error["data"]["error_type"] == "store_unavailable"
                assert answer.error["data"]["executed"] == "no"
                assert both.ledger.count(f"p{number}") == 0
            finally:
                database.come_back()
            async with asyncio.timeout(DEADLINE_S):
                while "result" not in (await caller.call("books__read", {"call": "after"})).reply:
                    await asyncio.sleep(0.1)


async def test_no_gateway_loses_tasks_after_a_database_outage_longer_than_a_lease(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        database = Database(both)
        tasks = [await both.begin(gateway, "once", f"c{gateway.port}", seconds=6) for gateway in (both.a, both.b)]
        for gateway in (both.a, both.b):
            await both.began(f"c{gateway.port}")
        database.go_away()
        await asyncio.sleep(2.5)  # longer than a lease: the length of the fault, not a wait for something to happen
        database.come_back()
        for task_id, gateway in zip(tasks, (both.a, both.b), strict=True):
            check_ended_well(both, f"c{gateway.port}", await both.until(both.a, task_id, *OVER))


async def test_cut_connections_lose_nothing(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        database = Database(both)
        made: dict[str, str] = {}
        for number in range(12):
            if number % 3 == 0:
                database.cut()
            made[f"c{number}"] = await in_the_end(both, f"c{number}")
        for call, task_id in made.items():
            check_ended_well(both, call, await both.until(both.b, task_id, *OVER))
