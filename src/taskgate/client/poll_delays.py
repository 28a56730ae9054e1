"""How long to wait between polls of a task, and when repeated failures end it."""

from __future__ import annotations

import random

from taskgate import clock
from taskgate.client.errors import ClientError, HttpRefusal, InvalidReply, ServerError, ServerUnreachable, Unauthorized
from taskgate.client.options import Options

MIN_INTERVAL, GREATEST_INTERVAL = 0.25, 60.0


def next_delay(interval_ms: int | None, default: float, *, pushed: bool = False) -> float:
    """Return the seconds until the next poll of a task: the server's interval, limited, with up to 10% jitter.

    The jitter only lengthens the delay, because a client must not poll faster than the server allows. If the server pushes
    its status (`pushed`), only a slow safety poll remains.
    """
    interval = default if interval_ms is None else interval_ms / 1000
    interval = min(max(interval, MIN_INTERVAL), GREATEST_INTERVAL)
    if pushed:
        interval = min(interval * 3, GREATEST_INTERVAL)
    return interval * random.uniform(1.0, 1.1)


def back_off(interval: float, failures: int, retry_after: float | None) -> float:
    """Return the seconds until the next attempt after `failures` consecutive failures."""
    grown = min(interval * 2.0 ** min(failures, 10), GREATEST_INTERVAL) * random.uniform(0.8, 1.2)
    return max(grown, retry_after or 0.0)


# Consecutive invalid replies that end a task. Fewer may come from a proxy and are retried.
INVALID_REPLY_LIMIT = 3
_PERMANENT_CODES = (-32601, -32021)


class PollFailures:
    """Counts the consecutive failures of polling one task."""

    __slots__ = ("_failures", "_invalid", "_options", "_since")

    def __init__(self, options: Options) -> None:
        self._options = options
        self._failures = self._invalid = 0
        self._since = 0.0

    def restored(self) -> None:
        """Reset the counters after a successful poll."""
        self._failures = self._invalid = 0

    def after(self, error: ClientError, task_id: str, poll_interval: int | None) -> float | ClientError:
        """Return the seconds until the next attempt, or the error that ends polling."""
        if isinstance(error, Unauthorized) or (isinstance(error, ServerError) and error.code in _PERMANENT_CODES):
            return error
        if isinstance(error, InvalidReply):
            self._invalid += 1
            if self._invalid >= INVALID_REPLY_LIMIT:
                return error
        now, limit = clock.monotonic(), self._options.give_up_after
        self._since = self._since if self._failures else now
        self._failures += 1
        if now - self._since >= limit:
            return ServerUnreachable(task_id, f"task {task_id} could not be polled for {limit:g} s: {error}")
        interval = next_delay(poll_interval, self._options.default_poll_interval)
        wait = back_off(interval, self._failures, error.retry_after if isinstance(error, HttpRefusal) else None)
        return min(wait, max(1.0, limit / 4))
