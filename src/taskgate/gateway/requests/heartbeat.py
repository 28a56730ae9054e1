"""Progress notifications of the gateway itself while a reply is held."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from taskgate import clock
from taskgate.core import wire
from taskgate.core.generations.generation import PROGRESS_TOKEN
from taskgate.gateway.requests.request import Request


class Heartbeat:
    """Send progress with a short text every few seconds while a reply is held.

    Progress may never decrease, so each heartbeat adds a thousandth to the last value.
    """

    def __init__(self, request: Request, interval_s: float, text: str, meta: Mapping[str, Any] | None = None) -> None:
        self._request = request
        self._interval_s = interval_s
        self.describe(text, meta)
        self._started = clock.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def describe(self, text: str, meta: Mapping[str, Any] | None = None) -> None:
        """Set the text of the next notifications, and their `_meta`."""
        self._text = text
        self._more = {"_meta": dict(meta)} if meta else {}

    def start(self, *, at_once: bool = False) -> None:
        """Send the first progress after one interval, or `at_once` if the text is new to the caller."""
        if self._request.progress_token is None:
            return
        if at_once:
            self._beat()
        else:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        request = self._request
        token = request.progress_token
        if request.delivery.answered or token is None:
            return
        pending = request.delivery.waiting_text() or self._text
        waited_s = round(clock.monotonic() - self._started)
        text = f"{pending} ({waited_s} s)" if waited_s else pending
        request.delivery.pace.beat(
            text,
            lambda progress: wire.encode({PROGRESS_TOKEN: token, "progress": progress, "message": text, **self._more}),
        )
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._beat)
