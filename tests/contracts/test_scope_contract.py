"""What every store must keep of temporary scopes. Each test runs on each adapter."""

from __future__ import annotations

from tests.contracts.store_under_test import START, StoreUnderTest

from taskgate.core.audit.chain import AuditEntry
from taskgate.store.operations.audit import AuditRows
from taskgate.store.operations.identity_records import (
    FindIdentityRecord,
    ForgetIdentityRecord,
    ForgetIdentityRecordsOf,
    IdentityRecord,
    IdentityRecords,
    KeepIdentityRecord,
)
from taskgate.store.operations.scopes import ForgetScope, KeepScope, KeptScope, KeptScopes
from taskgate.store.operations.upkeep import sweep

ONE = KeptScope("tmp-1", START + 5, b"{}")
TWO = KeptScope("tmp-2", START + 9, b"\x00\xff not text")


def entry(event: str, scope: str) -> AuditEntry:
    return AuditEntry(0, event, scope=scope, kind="scope")


async def test_scopes_survive_a_restart_and_each_change_has_its_audit_row(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    assert await store.ask(KeptScopes()) == ()
    await store.do(KeepScope(TWO, entry("opened", "tmp-2")))
    await store.do(KeepScope(ONE, entry("opened", "tmp-1")))
    await store.close()
    again = adapter.open()
    assert await again.ask(KeptScopes()) == (ONE, TWO)
    await again.do(ForgetScope("tmp-1", entry("ended", "tmp-1")))
    assert await again.ask(KeptScopes()) == (TWO,)
    rows = await again.ask(AuditRows())
    assert [(row.entry.event, row.entry.scope) for row in rows] == [
        ("opened", "tmp-2"),
        ("opened", "tmp-1"),
        ("ended", "tmp-1"),
    ]
    await again.close()


async def test_records_of_identities_are_kept_replaced_and_forgotten_by_name_by_principal_and_by_time(
    adapter: StoreUnderTest,
) -> None:
    store = adapter.open()
    first = IdentityRecord("session", "a", "ann", START + 10_000_000, b"1")
    await store.do(KeepIdentityRecord(first, AuditEntry(0, "logged_in", "ann")))
    await store.do(KeepIdentityRecord(IdentityRecord("session", "b", "ann", START + 10_000_000, b"2")))
    await store.do(KeepIdentityRecord(IdentityRecord("session", "c", "bob", START + 1, b"3")))
    await store.do(KeepIdentityRecord(IdentityRecord("revoked", "a", "ann", START + 10_000_000)))
    store.defer(KeepIdentityRecord(IdentityRecord("session", "a", "ann", START + 10_000_000, b"1 again")))
    await store.close()
    again = adapter.open()
    found = await again.ask(FindIdentityRecord("session", "a"))
    assert found is not None
    assert (found.principal, found.body) == ("ann", b"1 again")
    assert await again.ask(FindIdentityRecord("session", "z")) is None
    adapter.clock.now_ms += 100
    await sweep(again)
    assert [record.name for record in await again.ask(IdentityRecords("session"))] == ["a", "b"]
    assert not await again.do(ForgetIdentityRecord("session", "c"))
    assert await again.do(ForgetIdentityRecord("session", "b", AuditEntry(0, "logged_out", "ann")))
    assert await again.do(ForgetIdentityRecordsOf("session", "ann")) == 1
    assert [record.name for record in await again.ask(IdentityRecords("revoked"))] == ["a"]
    assert [row.entry.event for row in await again.ask(AuditRows())] == ["logged_in", "logged_out"]
    await again.close()
