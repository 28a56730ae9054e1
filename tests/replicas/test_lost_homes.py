"""The gateway that holds a session is killed, paused or gets wrong data: the session continues, and nothing runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import psycopg
from tests.harness.plain_http import NO_TLS
from tests.harness.raw_client import Answer, RawClient
from tests.replicas.in_process import gateways, until
from tests.replicas.three_gateways import LONG_LEASE, Replicas, three_replicas

DEADLINE_S = 60
SLOWLY = {"grace_ms": 60_000, "promote_after_ms": 60_000}


async def began(replicas: Replicas, call: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not replicas.ledger.count(call):
            await asyncio.sleep(0.05)


async def posted_to_internal(address: str, headers: dict[str, str]) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=120, verify=NO_TLS) as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        return await http.post(f"http://{address}/mcp", json=body, headers=headers)


@contextlib.asynccontextmanager
async def session_at(replicas: Replicas, index: int) -> AsyncIterator[RawClient]:
    """A session whose home is that gateway, and whose next requests go to the next one."""
    async with RawClient(replicas.gateways[index].url) as client:
        client.url = replicas.gateways[(index + 1) % len(replicas.gateways)].url
        yield client


async def test_a_session_outlives_its_home(tmp_path: Path) -> None:
    async with three_replicas(tmp_path, tasks=SLOWLY) as replicas, session_at(replicas, 0) as client:
        assert (await client.request("logging/setLevel", {"level": "error"})).result == {}
        assert "error" not in (await client.call("books__once", {"call": "before"})).reply
        in_flight = asyncio.create_task(client.call("books__once", {"call": "lost", "seconds": 60}))
        read = asyncio.create_task(client.request("tools/list"))
        await began(replicas, "lost")
        await replicas.gateways[0].kill()
        lost: Answer = await asyncio.wait_for(in_flight, DEADLINE_S)
        assert lost.error["data"]["executed"] == "maybe"
        assert lost.error["data"]["error_type"] == "outcome_unknown"
        assert (await read).result["tools"]
        both = [
            RawClient(gateway.url, headers=client.headers, numbers=itertools.count(1000 * (index + 1)))
            for index, gateway in enumerate(replicas.gateways[1:])
        ]
        answers = await asyncio.gather(
            *(one.call("books__once", {"call": f"after{number}"}) for number, one in enumerate(both))
        )
        assert [answer.reply.get("error") for answer in answers] == [None, None]
        assert [replicas.ledger.count(name) for name in ("before", "lost", "after0", "after1")] == [1, 1, 1, 1]
        for one in both:
            assert (await one.request("ping")).status == 200
            await one.http.aclose()
        adopted = sum(gateway.log.count('"session adopted"') for gateway in replicas.gateways)
        assert adopted == 1


async def test_the_stream_of_a_session_ends_with_its_home_and_continues_at_the_next(tmp_path: Path) -> None:
    async with three_replicas(tmp_path, tasks=SLOWLY) as replicas, session_at(replicas, 0) as client:
        headers = {"accept": "text/event-stream", **client.headers}
        async with asyncio.timeout(DEADLINE_S):
            async with client.http.stream("GET", client.url, headers=headers) as stream:
                lines = stream.aiter_lines()
                async for line in lines:
                    if line.startswith("id:"):
                        break
                await replicas.gateways[0].kill()
                async for _ in lines:
                    pass
            async with client.http.stream("GET", client.url, headers={**headers, "last-event-id": "g.0"}) as again:
                assert again.status_code == 200
                async for line in again.aiter_lines():
                    if line.startswith("id:"):
                        assert line.removeprefix("id:").strip() == "g1-.0"
                        break


async def test_a_session_continues_although_another_gateway_has_the_address_of_its_home(tmp_path: Path) -> None:
    """As when a gateway is killed and started again at once: until the old lease ends, the new one is asked for the old one."""
    async with gateways(tmp_path, number=1) as setup, setup.a.caller(stateless=False) as client:
        (ours,) = await until(lambda: setup.a.store.replicas)
        with psycopg.connect(setup.url, autocommit=True) as database:
            database.execute(
                "INSERT INTO replicas (owner, address, version, configuration, internal, started_ms, seen_ms)"
                " SELECT 'gw_before', address, version, configuration, internal, started_ms, seen_ms + 2000 FROM replicas"
            )
            database.execute(
                "INSERT INTO sessions SELECT 'before', tenant, principal, scope, 'gw_before', 0, seen_ms, body FROM sessions"
            )
        await until(lambda: len(setup.a.store.replicas) == 2)
        assert setup.a.store.address_of("gw_before") == ours.internal
        client.headers["mcp-session-id"] = "before"
        answer = await client.call("books__once", {"call": "after"})
        assert "result" in answer.reply, answer.reply
        assert setup.a.life is not None
        session = setup.a.life.app.gateway.lifecycle.sessions.get("before")
        assert session is not None
        assert session.moves == 1
        assert setup.ledger.count("after") == 1


async def test_a_home_that_crashes_before_it_was_reached_has_executed_nothing(tmp_path: Path) -> None:
    """Connections to its address are neither accepted nor refused: its lease expires while a connection is still being opened."""
    async with gateways(tmp_path, number=1) as setup, setup.a.caller(stateless=False) as client:
        await until(lambda: setup.a.store.replicas)
        with full_listener() as address, psycopg.connect(setup.url, autocommit=True) as database:
            database.execute(
                "INSERT INTO replicas (owner, address, version, configuration, internal, started_ms, seen_ms)"
                " SELECT 'gw_before', address, version, configuration, %s, started_ms, seen_ms + 2000 FROM replicas",
                [address],
            )
            database.execute(
                "INSERT INTO sessions SELECT 'before', tenant, principal, scope, 'gw_before', 0, seen_ms, body FROM sessions"
            )
            await until(lambda: len(setup.a.store.replicas) == 2)
            client.headers["mcp-session-id"] = "before"
            answer = await client.call("books__once", {"call": "after"})
        assert "result" in answer.reply, answer.reply
        assert setup.ledger.count("after") == 1


@contextlib.contextmanager
def full_listener() -> Iterator[str]:
    """An address at which connecting takes for ever, because its backlog is full and never accepted."""
    with contextlib.ExitStack() as waiting:
        listener = waiting.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):
            early = waiting.enter_context(socket.socket())
            early.setblocking(False)
            early.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_a_paused_home_releases_sessions_that_others_adopted(tmp_path: Path) -> None:
    async with three_replicas(tmp_path, tasks=SLOWLY) as replicas, session_at(replicas, 0) as client:
        assert "error" not in (await client.call("books__once", {"call": "before"})).reply
        replicas.pause(0)
        try:
            during = await asyncio.wait_for(client.call("books__once", {"call": "during"}), DEADLINE_S)
            assert during.error["data"]["executed"] == "maybe"
            after = await asyncio.wait_for(client.call("books__once", {"call": "after"}), DEADLINE_S)
            assert "error" not in after.reply
        finally:
            replicas.go_on(0)
        client.url = replicas.gateways[0].url
        back = await asyncio.wait_for(client.call("books__once", {"call": "back"}), DEADLINE_S)
        assert "error" not in back.reply
        assert "another gateway adopted the session" in replicas.gateways[0].log
        counts = [replicas.ledger.count(name) for name in ("before", "after", "back")]
        assert counts == [1, 1, 1]
        assert replicas.ledger.count("during") <= 1


async def test_the_internal_address_answers_gateways_only(tmp_path: Path) -> None:
    async with (
        three_replicas(tmp_path, number=2, launcher=LONG_LEASE, tasks=SLOWLY) as replicas,
        session_at(replicas, 0) as client,
    ):
        token = (replicas.gateways[0].state / "operator-token").read_text().strip()
        forged = "1 gw_x gw_y 1 aa bb " + "0" * 64
        for more in ({}, {"authorization": f"Bearer {token}"}, {"taskgate-hop": forged}):
            reply = await posted_to_internal(replicas.internals[0], {**client.headers, **more})
            assert reply.status_code == 403, reply.text
        async with httpx2.AsyncClient(timeout=120, verify=NO_TLS) as http:
            for method in ("GET", "DELETE", "PUT"):
                refused = await http.request(method, f"http://{replicas.internals[0]}/mcp", headers=client.headers)
                assert refused.status_code == 403
            for path in ("/ready", "/metrics", "/", "/api/approvals"):
                headers = {"authorization": f"Bearer {token}"}
                refused = await http.get(f"http://{replicas.internals[0]}{path}", headers=headers)
                assert refused.status_code == 403
        assert "request at the internal address rejected" in replicas.gateways[0].log
        assert (await client.request("ping")).result == {}


async def test_a_gateway_with_other_settings_still_finds_the_session(tmp_path: Path) -> None:
    async with three_replicas(tmp_path, number=2, launcher=LONG_LEASE, tasks=SLOWLY) as replicas:
        other = replicas.gateways[1]
        await other.stop()
        other.write(other.config.read_text() + "\ngovernance: {rules: [{match: 'x_*', action: deny}]}\n")
        await other.start()
        async with session_at(replicas, 0) as client:
            assert "error" not in (await client.call("books__read", {"call": "c"})).reply
            assert replicas.ledger.count("c") == 1
