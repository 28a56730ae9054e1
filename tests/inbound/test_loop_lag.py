"""The wait of a request counts from when it may have arrived, if the event loop was held up while requests arrived."""

from __future__ import annotations

import asyncio

from tests.virtual_time import settle, the_loop, virtual_time

from taskgate import clock
from taskgate.inbound.http.loop_lag import PROBE_S, LoopLag


def wait_s(lag: LoopLag) -> float:
    return round(clock.monotonic() - lag.arrival(), 3)


@virtual_time
async def test_a_request_read_after_a_long_iteration_may_have_waited_for_it() -> None:
    lag = LoopLag()
    assert wait_s(lag) == 0
    the_loop().leap(0.5)
    await settle()
    assert wait_s(lag) == 0.5 - PROBE_S
    await asyncio.sleep(0.1)
    assert wait_s(lag) == 0, "the loop is on time again"


@virtual_time
async def test_a_request_read_after_a_pause_has_not_waited() -> None:
    lag = LoopLag()
    wait_s(lag)
    await asyncio.sleep(10)
    assert wait_s(lag) == 0


@virtual_time
async def test_no_timer_is_set_while_no_requests_arrive() -> None:
    lag = LoopLag()
    wait_s(lag)
    before = clock.monotonic()
    await asyncio.sleep(1)
    # Only the timer of this test is left, so time passes in one step.
    fired = [handle for handle in the_loop()._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
    assert (clock.monotonic() - before, fired) == (1, [])
