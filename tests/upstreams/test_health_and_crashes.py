"""Health checks of servers, backoff, and pauses after repeated crashes."""

from __future__ import annotations

import asyncio

import pytest

from taskgate.core.errors import UpstreamError
from taskgate.upstreams import health_watch
from taskgate.upstreams.backoff import Backoff
from taskgate.upstreams.crash_loop import PAUSE_S, CrashLoop
from taskgate.upstreams.health_watch import HealthWatch


class Peer:
    def __init__(self) -> None:
        self.answers = True
        self.asked = 0

    async def round_trip(self, timeout_s: float) -> None:
        self.asked += 1
        if not self.answers:
            raise UpstreamError("upstream_timeout", "it does not answer")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_watch, "EVERY_S", 0.01)
    monkeypatch.setattr(health_watch, "WHEN_DEGRADED_S", 0.01)


async def test_unresponsive_server_is_degraded_until_it_responds(quick: None) -> None:
    peer, news = Peer(), asyncio.Queue[tuple[bool, str]]()
    watch = HealthWatch(lambda: [peer], lambda answers, why: news.put_nowait((answers, why)), lambda _link: None)
    watch.start()
    watch.start()
    async with asyncio.timeout(120):
        peer.answers = False
        assert await news.get() == (False, "it does not answer")
        assert watch.degraded
        peer.answers = True
        assert await news.get() == (True, "")
    assert not watch.degraded
    await watch.close()
    asked = peer.asked
    await asyncio.sleep(0.05)
    assert peer.asked == asked


async def test_no_ping_without_link_until_watch_is_restarted(quick: None) -> None:
    peer, links = Peer(), asyncio.Queue[Peer | None]()
    asked_for_link = asyncio.Event()

    def link() -> list[Peer]:
        asked_for_link.set()
        found = links.get_nowait() if not links.empty() else None
        return [found] if found is not None else []

    watch = HealthWatch(link, lambda _answers, _why: None, lambda _link: None)
    watch.start()
    async with asyncio.timeout(120):
        await asked_for_link.wait()
        assert peer.asked == 0
        links.put_nowait(peer)
        watch.start()
        while not peer.asked:
            await asyncio.sleep(0.005)
    await watch.close()


async def test_link_is_reported_after_three_missed_pings(quick: None) -> None:
    silent, well, reported = Peer(), Peer(), asyncio.Queue[Peer]()
    silent.answers = False
    watch = HealthWatch(lambda: [well, silent], lambda _answers, _why: None, reported.put_nowait)
    watch.start()
    async with asyncio.timeout(120):
        assert await reported.get() is silent
        assert silent.asked == health_watch.MAX_MISSED_PINGS
        silent.answers = True
        while watch.degraded:
            await asyncio.sleep(0.005)
    await watch.close()
    assert all(reported.get_nowait() is silent for _ in range(reported.qsize()))


def test_crash_limit_pauses_restarts() -> None:
    loop = CrashLoop(3, 10.0)
    assert [loop.crashed(at) for at in (0.0, 1.0)] == [False, False]
    assert loop.paused_s(1.0) == 0.0
    assert loop.crashed(2.0) is True
    assert loop.paused_s(2.0) == PAUSE_S
    assert loop.paused_s(100.0) == 0.0
    assert loop.crashed(101.0) is False


def test_crashes_far_apart_are_not_a_loop() -> None:
    loop = CrashLoop(2, 10.0)
    assert [loop.crashed(at) for at in (0.0, 11.0, 22.0)] == [False, False, False]


def test_pause_applies_regardless_of_backoff() -> None:
    backoff = Backoff()
    backoff.pause_until(50.0)
    assert backoff.wait_s(20.0) == 30.0
    assert backoff.attempt == 1
    backoff.succeeded()
    assert backoff.wait_s(20.0) == 0.0
