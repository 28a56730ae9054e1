"""What every store must keep of the servers' lists. Each test runs on each adapter."""

from __future__ import annotations

from tests.contracts.store_under_test import START, StoreUnderTest

from taskgate.store.operations.catalogs import ConfirmCatalog, ForgetCatalog, KeepCatalog, KeptCatalog, KeptCatalogs

ONE = KeptCatalog("one", "f1", START, b'{"tools":[]}')
TWO = KeptCatalog("two", "f2", START, b"\x00\xff not text")


async def test_catalogs_survive_a_restart_each_with_its_age(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    assert await store.ask(KeptCatalogs()) == ()
    store.defer(KeepCatalog(TWO))
    store.defer(KeepCatalog(ONE))
    await store.close()
    again = adapter.open()
    assert await again.ask(KeptCatalogs()) == (ONE, TWO)
    await again.close()


async def test_the_newest_catalog_of_a_server_replaces_the_one_before(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    changed = KeptCatalog("one", "f9", START + 5, b"{}")
    store.defer(KeepCatalog(ONE))
    store.defer(KeepCatalog(changed))
    store.defer(KeepCatalog(TWO))
    store.defer(ForgetCatalog("two"))
    await store.close()
    again = adapter.open()
    assert await again.ask(KeptCatalogs()) == (changed,)
    await again.close()


async def test_confirming_a_catalog_only_increases_its_time(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    store.defer(KeepCatalog(ONE))
    store.defer(ConfirmCatalog("one", START + 60_000))
    store.defer(ConfirmCatalog("one", START + 10))
    store.defer(ConfirmCatalog("unknown", START))
    await store.close()
    again = adapter.open()
    assert [(kept.server, kept.listed_ms, kept.body) for kept in await again.ask(KeptCatalogs())] == [
        ("one", START + 60_000, ONE.body)
    ]
    await again.close()
