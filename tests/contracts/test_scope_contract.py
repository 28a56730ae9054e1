"""What every store must keep of temporary scopes. Each test runs on each adapter."""

from __future__ import annotations

from tests.contracts.store_under_test import START, StoreUnderTest

from taskgate.core.audit.chain import AuditEntry
from taskgate.ports.identity_store import IdentityRecord
from taskgate.ports.scope_store import KeptScope

ONE = KeptScope("tmp-1", START + 5, b"{}")
TWO = KeptScope("tmp-2", START + 9, b"\x00\xff not text")


def entry(event: str, scope: str) -> AuditEntry:
    return AuditEntry(0, event, scope=scope, kind="scope")


async def test_scopes_survive_a_restart_and_each_change_has_its_audit_row(adapter: StoreUnderTest) -> None:
    store = adapter.open()
    assert await store.kept_scopes() == ()
    await store.keep_scope(TWO, entry("opened", "tmp-2"))
    await store.keep_scope(ONE, entry("opened", "tmp-1"))
    await store.close()
    again = adapter.open()
    assert await again.kept_scopes() == (ONE, TWO)
    await again.forget_scope("tmp-1", entry("ended", "tmp-1"))
    assert await again.kept_scopes() == (TWO,)
    rows = await again.audit_rows()
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
    await store.keep_identity_record(first, AuditEntry(0, "logged_in", "ann"))
    await store.keep_identity_record(IdentityRecord("session", "b", "ann", START + 10_000_000, b"2"))
    await store.keep_identity_record(IdentityRecord("session", "c", "bob", START + 1, b"3"))
    await store.keep_identity_record(IdentityRecord("revoked", "a", "ann", START + 10_000_000))
    store.note_identity_record(IdentityRecord("session", "a", "ann", START + 10_000_000, b"1 again"))
    await store.close()
    again = adapter.open()
    found = await again.find_identity_record("session", "a")
    assert found is not None
    assert (found.principal, found.body) == ("ann", b"1 again")
    assert await again.find_identity_record("session", "z") is None
    adapter.clock.now_ms += 100
    await again.sweep()
    assert [record.name for record in await again.identity_records("session")] == ["a", "b"]
    assert not await again.forget_identity_record("session", "c")
    assert await again.forget_identity_record("session", "b", AuditEntry(0, "logged_out", "ann"))
    assert await again.forget_identity_records_of("session", "ann") == 1
    assert [record.name for record in await again.identity_records("revoked")] == ["a"]
    assert [row.entry.event for row in await again.audit_rows()] == ["logged_in", "logged_out"]
    await again.close()
