"""Progress notifications for one caller: rate-limited, and the last update is always sent.

One `PacedProgress` belongs to one progress token, from its first update until the request or the task ends. `core.delivery`
decides when to send; this module has the clock and the timer. Requests without a token create no instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from taskgate import clock
from taskgate.core import wire
from taskgate.core.generations.generation import PROGRESS_TOKEN
from taskgate.core.progress import ProgressFlow, ProgressUpdate
from taskgate.core.wire import Raw


class PacedProgress:
    __slots__ = ("_flow", "_send", "_timer")

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._flow = ProgressFlow()
        self._send = send
        self._timer: asyncio.TimerHandle | None = None

    def offer(self, progress: float, params: bytes) -> None:
        """Send an encoded update now or when the rate limit allows it."""
        self._send_or_schedule(*self._flow.offer(ProgressUpdate(progress, payload=params), clock.monotonic()))

    def _send_or_schedule(self, update: ProgressUpdate | None, due: float | None) -> None:
        if update is not None:
            self._send(update.payload)
        if due is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - clock.monotonic()), self._due)

    def _due(self) -> None:
        self._timer = None
        self._send_or_schedule(*self._flow.due(clock.monotonic()))

    def beat(self, message: str, params: Callable[[float], bytes]) -> None:
        """Send a heartbeat of the gateway, with a progress value just above the last one."""
        update = self._flow.heartbeat(message, clock.monotonic())
        if update is not None:
            self._send(params(update.progress))

    def end(self) -> None:
        """Send the held update, if any. No update may follow."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held = self._flow.end()
        if held is not None:
            self._send(held.payload)


def with_caller_token(params: Raw, token: Raw) -> tuple[float, bytes] | None:
    """Replace the token of a server's update by the caller's. Return its progress value and params; None without a value."""
    members = wire.members_of(params)
    number = progress_number(members.get("progress"))
    if number is None:
        return None
    members[PROGRESS_TOKEN] = token
    return number, wire.join(members)


def progress_number(raw: Raw | None) -> float | None:
    value: Any = wire.parse_strictly(bytes(raw)) if raw is not None else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
