"""Announcements between gateways: only declared topics are kept for waiters."""

from __future__ import annotations

import pytest

from taskgate.ports.topics import CACHED, TASKS, TOPICS

pytest.importorskip("psycopg", reason="PostgreSQL tests need `psycopg`: pip install 'taskgate[postgres]'")

from taskgate.store.postgres.wakeups import Wakeups


async def test_announcement_under_an_unknown_topic_is_dropped() -> None:
    wakeups = Wakeups()
    assert await wakeups.wait(TASKS, 0) is None
    wakeups.announce("of a newer version", ["one"])
    wakeups.announce(TASKS, ["task"])

    assert await wakeups.wait(TASKS, 30) == {"task"}
    assert wakeups._names == {}


def test_cached_topics_are_topics() -> None:
    assert CACHED < TOPICS
