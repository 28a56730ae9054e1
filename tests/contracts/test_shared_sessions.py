"""Sessions as rows that two gateways share: found by both, changed by their home alone, adopted from the dead by one only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from store_under_test import PostgresUnderTest
from tests.harness.postgres import fresh_url

from taskgate.ports.replicas import SESSIONS, KeptSession

pytest.importorskip("psycopg", reason="PostgreSQL tests need `psycopg`: pip install 'taskgate[postgres]'")

from taskgate.store.postgres.store import PostgresStore, open_store

DEADLINE_S = 60
SESSION = KeptSession("s1", "ann", "default", "", 0, b"{}")


@pytest.fixture
def adapter() -> PostgresUnderTest:
    return PostgresUnderTest(fresh_url())


@pytest.fixture
async def stores(adapter: PostgresUnderTest) -> AsyncIterator[list[PostgresStore]]:
    opened = [open_store(adapter.url, owner=name, internal=f"{name}:1") for name in ("a", "b", "c")]
    yield opened
    for store in opened:
        await store.close()


async def until_adopted(store: PostgresStore, former: str) -> KeptSession:
    async with asyncio.timeout(DEADLINE_S):
        while (adopted := await store.sessions.adopt_session("s1", former)) is None:
            await asyncio.sleep(0.05)
    return adopted


async def test_a_session_is_found_by_the_others_with_its_home_and_its_address(stores: list[PostgresStore]) -> None:
    a, b, _ = stores
    await a.sessions.open_session(SESSION)
    async with asyncio.timeout(DEADLINE_S):
        while "s1" not in (await b.wakeups.wait(SESSIONS, 1.0) or ()):
            pass
    found = await b.sessions.find_session("s1")
    assert found is not None
    assert (found.home, found.moves, found.internal) == ("a", 0, "a:1")
    assert await b.sessions.sessions_elsewhere() == {"s1"}
    assert await a.sessions.sessions_elsewhere() == frozenset()
    assert await a.sessions.own_sessions() == {"s1"}


async def test_nobody_but_its_home_changes_or_ends_a_session(stores: list[PostgresStore]) -> None:
    a, b, _ = stores
    await a.sessions.open_session(SESSION)
    assert await a.sessions.change_session("s1", b'{"n":1}') is True
    assert await b.sessions.change_session("s1", b'{"n":2}') is False
    await b.sessions.end_session("s1")
    found = await b.sessions.find_session("s1")
    assert found is not None
    assert found.body == b'{"n":1}'
    await a.sessions.end_session("s1")
    assert await b.sessions.find_session("s1") is None


async def test_the_session_of_a_living_home_cannot_be_adopted(stores: list[PostgresStore]) -> None:
    a, b, _ = stores
    await a.sessions.open_session(SESSION)
    for _ in range(20):  # for longer than a lease: the home renews it
        assert await b.sessions.adopt_session("s1", "a") is None
        await asyncio.sleep(0.1)
    found = await b.sessions.find_session("s1")
    assert found is not None
    assert found.home == "a"


async def test_of_two_that_adopt_the_session_of_a_dead_home_one_wins(stores: list[PostgresStore]) -> None:
    a, b, c = stores
    await a.sessions.open_session(SESSION)
    await asyncio.to_thread(a.engine.presence.stop_renewing)

    async def adopt(store: PostgresStore) -> KeptSession | None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                won = await store.sessions.adopt_session("s1", "a")
                found = await store.sessions.find_session("s1")
                assert found is not None
                if won is not None or found.home != "a":
                    return won
                await asyncio.sleep(0.02)

    won = [adopted for adopted in await asyncio.gather(adopt(b), adopt(c)) if adopted is not None]
    assert len(won) == 1
    found = await b.sessions.find_session("s1")
    assert found is not None
    assert (found.home, found.moves) == (won[0].home, 1)


async def test_a_home_that_was_taken_for_dead_has_lost_its_session(stores: list[PostgresStore]) -> None:
    a, b, _ = stores
    await a.sessions.open_session(SESSION)
    await asyncio.to_thread(a.engine.presence.stop_renewing)
    await until_adopted(b, "a")
    assert a.sessions.is_fresh is False
    assert await a.sessions.own_sessions() == frozenset()
    assert await a.sessions.adopt_session("s1", "a") is None


async def test_what_nobody_has_held_for_long_is_forgotten(stores: list[PostgresStore]) -> None:
    a, b, _ = stores
    await a.sessions.open_session(SESSION)
    await b.sessions.sessions_seen(b.now_ms() - 60_000)
    assert await b.sessions.find_session("s1") is not None
    await b.sessions.sessions_seen(b.now_ms() + 60_000)
    assert await b.sessions.find_session("s1") is None


async def test_all_sessions_that_a_gateway_releases_can_be_adopted_while_it_lives(stores: list[PostgresStore]) -> None:
    a, b, c = stores
    await a.sessions.open_session(SESSION)
    await c.sessions.open_session(msgspec.structs.replace(SESSION, id="s2"))
    await a.sessions.release_sessions()
    adopted = await b.sessions.adopt_session("s1", "")
    assert adopted is not None
    assert (adopted.home, adopted.moves) == ("b", 1)
    assert await c.sessions.own_sessions() == {"s2"}, "those of others stay theirs"


async def test_a_gateway_in_the_place_of_one_that_has_ended_ends_its_lease(
    adapter: PostgresUnderTest, stores: list[PostgresStore]
) -> None:
    a, b, _ = stores
    await a.sessions.open_session(SESSION)
    await asyncio.to_thread(a.engine.presence.stop_renewing)
    successor = open_store(adapter.url, owner="a2", replaces="a", internal="a:1")
    try:
        found = await b.sessions.find_session("s1")
        assert found is not None
        assert (found.home, found.internal) == ("a", None)
        assert await b.sessions.adopt_session("s1", "a") is not None
    finally:
        await successor.close()
