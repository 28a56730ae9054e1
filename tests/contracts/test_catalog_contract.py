"""What every store must keep of the servers' lists. Each test runs on each adapter."""

from __future__ import annotations

from tests.contracts.store_under_test import START, StoreUnderTest

from taskgate.ports.catalog_store import KeptCatalog

ONE = KeptCatalog("one", "f1", START, b'{"tools":[]}')
TWO = KeptCatalog("two", "f2", START, b"\x00\xff not text")


async def test_catalogs_survive_a_restart_each_with_its_age(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    assert await store.kept_catalogs() == ()
    store.keep_catalog(TWO)
    store.keep_catalog(ONE)
    await store.close()
    again = adapter.open()
    assert await again.kept_catalogs() == (ONE, TWO)
    await again.close()


async def test_the_newest_catalog_of_a_server_replaces_the_one_before(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    changed = KeptCatalog("one", "f9", START + 5, b"{}")
    store.keep_catalog(ONE)
    store.keep_catalog(changed)
    store.keep_catalog(TWO)
    store.forget_catalog("two")
    await store.close()
    again = adapter.open()
    assert await again.kept_catalogs() == (changed,)
    await again.close()


async def test_confirming_a_catalog_only_increases_its_time(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    store.keep_catalog(ONE)
    store.catalog_confirmed("one", START + 60_000)
    store.catalog_confirmed("one", START + 10)
    store.catalog_confirmed("unknown", START)
    await store.close()
    again = adapter.open()
    assert [(kept.server, kept.listed_ms, kept.body) for kept in await again.kept_catalogs()] == [
        ("one", START + 60_000, ONE.body)
    ]
    await again.close()
