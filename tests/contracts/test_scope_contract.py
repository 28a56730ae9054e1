"""What every store must keep of the scopes handed over at run time. Each test runs on each adapter."""

from __future__ import annotations

from store_under_test import START, StoreUnderTest

from taskgate.core.audit import AuditEntry
from taskgate.ports.store import KeptScope

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
