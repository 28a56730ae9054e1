"""A store that counts as restored from a backup: declared, dealt with once, or trusted again. Each test runs on each adapter."""

from __future__ import annotations

import pytest
from tests.contracts.store_under_test import PostgresUnderTest, StoreUnderTest, a_call, asking
from tests.contracts.task_steps import accepted, dispatched

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import GatewayFault
from taskgate.core.governance.approval import State
from taskgate.core.governance.held_call import HeldCall
from taskgate.store.operations.approvals import FindHeld, HoldCall
from taskgate.store.operations.audit import AuditRows
from taskgate.store.operations.identity_records import (
    CONSOLE_SESSION,
    LOGIN_CODE,
    IdentityRecord,
    IdentityRecords,
    KeepIdentityRecord,
)
from taskgate.store.operations.restored import AcceptRestored, DeclareRestored, TrustRestored
from taskgate.store.operations.upkeep import Claim

DECLARED = AuditEntry(0, "store_declared_restored", principal="operator")


async def declared(adapter: StoreUnderTest) -> None:
    store = adapter.open(owner="declaring")
    await store.do(DeclareRestored(DECLARED))
    await store.close()


async def test_declared_store_counts_as_restored_until_a_start_has_handled_it(adapter: StoreUnderTest) -> None:
    new = adapter.open()
    assert not new.state.restore.is_restored
    await new.close()
    await declared(adapter)
    for _ in range(2):
        store = adapter.open()
        assert store.state.restore.is_restored
        await store.close()
    store = adapter.open()
    await store.do(AcceptRestored())
    assert not store.state.restore.is_restored
    assert [row.entry.event for row in await store.ask(AuditRows())][-1] == "store_restored"
    await store.close()
    later = adapter.open()
    assert not later.state.restore.is_restored
    await later.close()


async def test_trusted_store_counts_as_current(adapter: StoreUnderTest) -> None:
    await declared(adapter)
    store = adapter.open()
    assert await store.do(TrustRestored(AuditEntry(0, "store_trusted")))
    assert not await store.do(TrustRestored(AuditEntry(0, "store_trusted")))
    assert [row.entry.event for row in await store.ask(AuditRows())].count("store_trusted") == 1
    await store.close()
    later = adapter.open()
    assert not later.state.restore.is_restored
    await later.close()


async def test_accepting_a_restored_store_ends_what_it_allowed(adapter: StoreUnderTest) -> None:
    first = adapter.open()
    held = await first.do(HoldCall(asking(a_call(), id="ap_open")))
    assert isinstance(held, HeldCall)
    until_ms = first.now_ms() + 3_600_000
    for kind in (CONSOLE_SESSION, LOGIN_CODE, "revoked"):
        await first.do(KeepIdentityRecord(IdentityRecord(kind, "one", "ann", until_ms, b"{}")))
    await first.close()
    await declared(adapter)
    store = adapter.open()
    voided = await store.do(AcceptRestored())
    assert (voided.approvals, voided.logins) == (1, 2)
    found = await store.ask(FindHeld("ap_open"))
    assert found is not None
    assert (found.approval.state, held.approval.state) == (State.CANCELLED, State.OPEN)
    assert await store.ask(IdentityRecords(CONSOLE_SESSION)) == await store.ask(IdentityRecords(LOGIN_CODE)) == ()
    assert len(await store.ask(IdentityRecords("revoked"))) == 1
    await store.close()


async def test_tasks_of_every_gateway_before_the_backup_are_claimed_at_once(adapter: StoreUnderTest) -> None:
    """A lease that has not run out would keep a task away until the store no longer counts as restored."""
    before = adapter.open(owner="before")
    waiting = await accepted(before)
    sent = await dispatched(before)
    if isinstance(adapter, PostgresUnderTest) and adapter.first is not None:
        adapter.first.engine.presence.stop_renewing()  # the lease stays
    else:
        await before.close()
    await declared(adapter)
    store = adapter.open(owner="after")
    assert set(await store.do(Claim())) == {waiting.id, sent.id}
    await store.close()


async def test_one_gateway_at_a_time_handles_a_restored_database(
    adapter: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(adapter, PostgresUnderTest):
        return  # a file is locked for one process anyway
    from taskgate.store.postgres import store as postgres_store

    monkeypatch.setattr(postgres_store, "RESTORE_WITHIN_MS", 100)
    await declared(adapter)
    first = adapter.open(owner="first")
    with pytest.raises(GatewayFault):
        adapter.open(owner="second")
    await first.do(AcceptRestored())
    second = adapter.open(owner="second")
    assert not second.state.restore.is_restored
    await second.close()
    await first.close()
