"""Accounts as rows that several gateways share: one sees what another wrote, one renews at a time, notes are taken once."""

from __future__ import annotations

from tests.harness.postgres import fresh_url

from taskgate.store.postgres.account_rows import PostgresRows
from taskgate.store.postgres.connection import migrate_at


def test_two_gateways_share_accounts_and_only_one_renews_at_a_time() -> None:
    url = fresh_url()
    migrate_at(url)
    one, other = PostgresRows(url), PostgresRows(url)
    one.put("notes\x1fann", b"\x00\xff")
    one.put("notes\x1fbob", b"2")
    one.put("old", b"3", 1.0)
    assert (other.get("notes\x1fann"), other.get("old")) == (b"\x00\xff", None)
    assert set(other.listed("notes\x1f")) == {"notes\x1fann", "notes\x1fbob"}
    assert one.claim("notes\x1fann", "one", 20)
    assert not other.claim("notes\x1fann", "other", 20)
    assert one.claim("notes\x1fann", "one", 20)
    one.release("notes\x1fann", "one")
    assert other.claim("notes\x1fann", "other", 20)
    assert (one.take("notes\x1fbob"), other.take("notes\x1fbob")) == (b"2", None)
