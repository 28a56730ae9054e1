"""When a gateway reads the leases of the others, and that it receives all their announcements in between."""

from __future__ import annotations

import json

import pytest
from tests.harness.postgres import migrated_url

from taskgate.ports.store_answers import Ownership

pytest.importorskip("psycopg", reason="PostgreSQL tests need `psycopg`: pip install 'taskgate[postgres]'")

from taskgate.store.postgres.connection import connect
from taskgate.store.postgres.presence import CHANNEL, LATE_MS, LEASE_MS, RENEW_S, Presence, listen_s

RENEW_MS = int(RENEW_S * 1000)


def checks_after(last_renewal_ms: int, first_check_ms: int) -> list[int]:
    """The times at which a gateway checks a lease that was last renewed at `last_renewal_ms`, until it has expired."""
    looks = [first_check_ms]
    while looks[-1] <= last_renewal_ms + LEASE_MS:
        looks.append(looks[-1] + round(listen_s([last_renewal_ms], looks[-1]) * 1000))
    return looks


def test_a_crash_is_detected_right_after_the_lease_has_expired() -> None:
    noticed = [checks_after(1_000, 1_000 + phase)[-1] - 1_000 for phase in range(RENEW_MS)]
    assert min(noticed) > LEASE_MS, "a lease that had not ended was taken for dead"
    assert max(noticed) <= LEASE_MS + LATE_MS == 1_600


def test_leases_are_not_read_more_often_while_all_are_renewed_in_time() -> None:
    for age_ms in range(LEASE_MS + LATE_MS - RENEW_MS):
        assert listen_s([10_000 - age_ms], 10_000) == RENEW_S


def test_long_expired_or_missing_leases_cause_no_additional_reads() -> None:
    assert listen_s([], 10_000) == RENEW_S
    assert listen_s([10_000 - LEASE_MS - 1, 1], 10_000) == RENEW_S


def test_notifications_received_together_are_all_handled_also_during_a_renewal() -> None:
    url, received = migrated_url(), list[str]()
    listener = Presence(
        url, Ownership("b", 1), ("", "", "", "", ""), lambda topic, names: received.extend([topic, *names]), None
    )
    with connect(url, "listener") as listening, connect(url, "teller") as telling:
        listening.execute(f"LISTEN {CHANNEL}")
        with telling.transaction():
            for name in ("first", "second", "third"):
                telling.execute("SELECT pg_notify(%s, %s)", (CHANNEL, json.dumps(["a", "lists", [name]])))
        listener._listen(listening)
    assert received == ["lists", "first", "lists", "second", "lists", "third"]
