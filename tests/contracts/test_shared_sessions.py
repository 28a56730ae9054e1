"""Sessions as rows that two gateways share: found by both, changed by their home alone, adopted from the dead by one only."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.contracts.store_under_test import PostgresUnderTest, until_it_listens
from tests.harness.postgres import migrated_url

from taskgate.ports.topics import SESSIONS
from taskgate.store.operations.shared_sessions import CONVERSATION, KeptSession, SessionLimits, TooManySessions

pytest.importorskip("psycopg", reason="PostgreSQL tests need `psycopg`: pip install 'taskgate[postgres]'")

import psycopg

from taskgate.store.operations.shared_sessions import (
    AdoptSession,
    BeginConversation,
    ChangeSession,
    ConfirmSessions,
    EndSession,
    FindSession,
    OpenSession,
    OwnSessions,
    ReleaseSessions,
    SessionsElsewhere,
)
from taskgate.store.postgres.presence import LEASE_MS
from taskgate.store.postgres.store import PostgresStore, open_store

DEADLINE_S = 60
SESSION = KeptSession("s1", "ann", "default", "", 0, b"{}")
UNLIMITED = SessionLimits("ann", 1_000, None)


@pytest.fixture
def adapter() -> PostgresUnderTest:
    return PostgresUnderTest(migrated_url())


@pytest.fixture
async def stores(adapter: PostgresUnderTest) -> AsyncIterator[list[PostgresStore]]:
    opened = [open_store(adapter.url, owner=name, internal=f"{name}:1") for name in ("a", "b", "c")]
    for store in opened:
        await until_it_listens(store)
    yield opened
    for store in opened:
        await store.close()


async def until_adopted(store: PostgresStore, former: str) -> KeptSession:
    async with asyncio.timeout(DEADLINE_S):
        while (adopted := await store.do(AdoptSession("s1", former))) is None:
            await asyncio.sleep(0.05)
    return adopted


async def test_a_session_is_found_by_other_gateways_with_its_home_and_address(stores: list[PostgresStore]) -> None:
    a, b, _ = stores
    await a.do(OpenSession(SESSION, UNLIMITED))
    async with asyncio.timeout(DEADLINE_S):
        while "s1" not in (await b.wakeups.wait(SESSIONS, 1.0) or ()):
            pass
    found = await b.ask(FindSession("s1"))
    assert found is not None
    assert (found.home, found.moves, found.internal) == ("a", 0, "a:1")
    assert await b.ask(SessionsElsewhere()) == {"s1"}
    assert await a.ask(SessionsElsewhere()) == frozenset()
    assert await a.ask(OwnSessions()) == {"s1"}


async def test_only_its_home_changes_or_ends_a_session(stores: list[PostgresStore]) -> None:
    a, b, _ = stores
    await a.do(OpenSession(SESSION, UNLIMITED))
    assert await a.do(ChangeSession("s1", b'{"n":1}')) is True
    assert await b.do(ChangeSession("s1", b'{"n":2}')) is False
    await b.do(EndSession("s1"))
    found = await b.ask(FindSession("s1"))
    assert found is not None
    assert found.body == b'{"n":1}'
    await a.do(EndSession("s1"))
    assert await b.ask(FindSession("s1")) is None


async def until_renewed(store: PostgresStore, now_ms: int) -> None:
    """Its lease, as the others find it."""
    async with asyncio.timeout(DEADLINE_S):
        while (store.ownership.owner, now_ms) not in [(seen.owner, seen.seen_ms) for seen in store.replicas]:
            await asyncio.sleep(0.02)


async def until_leases_may_expire(store: PostgresStore) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not store.engine.presence.may_declare_dead:
            await asyncio.sleep(0.02)


async def test_the_session_of_a_running_home_cannot_be_adopted(adapter: PostgresUnderTest) -> None:
    """For longer than a lease, because the home renews it. The clock is the test's: however late a renewal is, it is in time."""
    a, b = adapter.open_beside("a"), adapter.open_beside("b")
    await a.do(OpenSession(SESSION, UNLIMITED))
    for _ in range(3):
        adapter.clock.turn(LEASE_MS // 2)
        await until_renewed(a, adapter.clock.now_ms)
        await until_leases_may_expire(b)
        assert await b.do(AdoptSession("s1", "a")) is None
    found = await b.ask(FindSession("s1"))
    assert found is not None
    assert found.home == "a"
    for store in (a, b):
        await store.close()


async def test_one_of_two_gateways_adopts_the_session_of_a_dead_home(stores: list[PostgresStore]) -> None:
    a, b, c = stores
    await a.do(OpenSession(SESSION, UNLIMITED))
    await asyncio.to_thread(a.engine.presence.stop_renewing)

    async def adopt(store: PostgresStore) -> KeptSession | None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                won = await store.do(AdoptSession("s1", "a"))
                found = await store.ask(FindSession("s1"))
                assert found is not None
                if won is not None or found.home != "a":
                    return won
                await asyncio.sleep(0.02)

    won = [adopted for adopted in await asyncio.gather(adopt(b), adopt(c)) if adopted is not None]
    assert len(won) == 1
    found = await b.ask(FindSession("s1"))
    assert found is not None
    assert (found.home, found.moves) == (won[0].home, 1)


async def test_a_home_whose_lease_expired_has_lost_its_session(stores: list[PostgresStore]) -> None:
    a, b, _ = stores
    await a.do(OpenSession(SESSION, UNLIMITED))
    await asyncio.to_thread(a.engine.presence.stop_renewing)
    await until_adopted(b, "a")
    assert a.is_fresh is False
    assert await a.ask(OwnSessions()) == frozenset()
    assert await a.do(AdoptSession("s1", "a")) is None


async def test_a_session_without_home_is_deleted_after_a_while(stores: list[PostgresStore]) -> None:
    a, b, _ = stores
    await a.do(OpenSession(SESSION, UNLIMITED))
    await b.do(ConfirmSessions(b.now_ms() - 60_000))
    assert await b.ask(FindSession("s1")) is not None
    await b.do(ConfirmSessions(b.now_ms() + 60_000))
    assert await b.ask(FindSession("s1")) is None


async def test_released_sessions_can_be_adopted_while_their_gateway_runs(stores: list[PostgresStore]) -> None:
    a, b, c = stores
    await a.do(OpenSession(SESSION, UNLIMITED))
    await c.do(OpenSession(msgspec.structs.replace(SESSION, id="s2"), UNLIMITED))
    await a.do(ReleaseSessions())
    adopted = await b.do(AdoptSession("s1", ""))
    assert adopted is not None
    assert (adopted.home, adopted.moves) == ("b", 1)
    assert await c.ask(OwnSessions()) == {"s2"}, "those of others stay theirs"


async def test_a_gateway_that_replaces_an_ended_one_ends_its_lease(
    adapter: PostgresUnderTest, stores: list[PostgresStore]
) -> None:
    a, b, _ = stores
    await a.do(OpenSession(SESSION, UNLIMITED))
    await asyncio.to_thread(a.engine.presence.stop_renewing)
    successor = open_store(adapter.url, owner="a2", replaces="a", internal="a:1")
    try:
        found = await b.ask(FindSession("s1"))
        assert found is not None
        assert (found.home, found.internal) == ("a", None)
        assert await b.do(AdoptSession("s1", "a")) is not None
    finally:
        await successor.close()


async def test_sessions_of_a_caller_and_of_a_tenant_are_counted_at_all_gateways_together(
    stores: list[PostgresStore],
) -> None:
    numbers = itertools.count(1)

    async def opened(store: PostgresStore, name: str, of_caller: int, of_tenant: int | None = None) -> object:
        kept = KeptSession(f"n{next(numbers)}", name, "default", "", 0, b"{}")
        return await store.do(OpenSession(kept, SessionLimits(name, of_caller, of_tenant)))

    a, b, c = stores
    assert [await opened(a, "ann", 2), await opened(b, "ann", 2)] == [None, None]
    assert await opened(c, "ann", 2) is TooManySessions.OF_CALLER
    assert await opened(c, "bea", 2) is None, "another caller"
    assert [await opened(a, "acme/x", 9, 2), await opened(b, "acme/y", 9, 2)] == [None, None]
    assert await opened(c, "acme/z", 9, 2) is TooManySessions.OF_TENANT
    assert await opened(c, "other/z", 9, 2) is None
    await a.do(EndSession("n1"))
    together = await asyncio.gather(*(opened(store, "ann", 2) for store in stores))
    assert sorted(map(str, together)) == ["None", "caller", "caller"], "of three at once one has the place that is free"


async def test_a_session_without_home_for_two_minutes_does_not_count(
    adapter: PostgresUnderTest, stores: list[PostgresStore]
) -> None:
    a, b, _ = stores
    limits = SessionLimits("ann", 1, None)
    assert await a.do(OpenSession(SESSION, limits)) is None
    await a.do(ReleaseSessions())
    second = msgspec.structs.replace(SESSION, id="s2")
    assert await b.do(OpenSession(second, limits)) is TooManySessions.OF_CALLER
    with psycopg.connect(adapter.url, autocommit=True) as database:
        database.execute("UPDATE sessions SET seen_ms = seen_ms - 121000")
    assert await b.do(OpenSession(second, limits)) is None


async def test_the_first_home_of_a_conversation_is_kept_and_not_counted(stores: list[PostgresStore]) -> None:
    a, b, _ = stores
    row = msgspec.structs.replace(SESSION, id=f"{CONVERSATION}ann")
    await a.do(BeginConversation(row))
    await b.do(BeginConversation(row))
    found = await b.ask(FindSession(row.id))
    assert found is not None
    assert (found.home, found.internal) == ("a", "a:1")
    assert await b.do(OpenSession(SESSION, SessionLimits("ann", 1, None))) is None
    assert await b.ask(SessionsElsewhere()) == {row.id}
