"""How long to wait between polls of a task, and when repeated failures end it."""

from __future__ import annotations

import random

from taskgate import clock
from taskgate.client.errors import ClientError, HttpRefusal, InvalidReply, ServerError, ServerUnreachable, Unauthorized
from taskgate.client.options import Options

LEAST_INTERVAL, GREATEST_INTERVAL = 0.25, 60.0


def next_delay(interval_ms: int | None, default: float, *, pushed: bool = False) -> float:
    """Seconds until the next look at a task: what the server asked for, within bounds, a little spread out.

    The spread only ever lengthens the wait, because polling faster than asked is impolite. Where the server pushes its
    status by itself (`pushed`) only a slow safety poll stays.
    """
    interval = default if interval_ms is None else interval_ms / 1000
    interval = min(max(interval, LEAST_INTERVAL), GREATEST_INTERVAL)
    if pushed:
        interval = min(interval * 3, GREATEST_INTERVAL)
    return interval * random.uniform(1.0, 1.1)


def back_off(interval: float, failures: int, retry_after: float | None) -> float:
    """Seconds until the next try after `failures` failures in a row."""
    grown = min(interval * 2.0 ** min(failures, 10), GREATEST_INTERVAL) * random.uniform(0.8, 1.2)
    return max(grown, retry_after or 0.0)


# A reply that makes no sense is asked for again this often: it may have been a passing proxy, it may be a liar.
RUBBISH_LIMIT = 3
_HOPELESS = (-32601, -32021)


class Patience:
    """What has gone wrong lately with one task."""

    __slots__ = ("_failures", "_options", "_rubbish", "_since")

    def __init__(self, options: Options) -> None:
        self._options = options
        self._failures = self._rubbish = 0
        self._since = 0.0

    def restored(self) -> None:
        """A poll went well."""
        self._failures = self._rubbish = 0

    def after(self, error: ClientError, task_id: str, poll_interval: int | None) -> float | ClientError:
        """Seconds until the next try, or the error that ends the trying."""
        if isinstance(error, Unauthorized) or (isinstance(error, ServerError) and error.code in _HOPELESS):
            return error
        if isinstance(error, InvalidReply):
            self._rubbish += 1
            if self._rubbish >= RUBBISH_LIMIT:
                return error
        now, limit = clock.monotonic(), self._options.give_up_after
        self._since = self._since if self._failures else now
        self._failures += 1
        if now - self._since >= limit:
            return ServerUnreachable(task_id, f"no word about task {task_id} for {limit:g} s: {error}")
        interval = next_delay(poll_interval, self._options.default_poll_interval)
        wait = back_off(interval, self._failures, error.retry_after if isinstance(error, HttpRefusal) else None)
        return min(wait, max(1.0, limit / 4))
