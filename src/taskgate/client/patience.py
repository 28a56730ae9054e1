"""How long to put up with failing polls of one task, and how long to wait between them.

Counts failures in a row; says either how many seconds to wait or with which error to give the task up. Used by the
task handle.
"""

from __future__ import annotations

from taskgate import clock
from taskgate.client.errors import ClientError, InvalidReply, ServerError, ServerUnreachable, Unauthorized
from taskgate.client.options import Options
from taskgate.client.poller import back_off, next_delay

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
        wait = back_off(interval, self._failures, getattr(error, "retry_after", None))
        return min(wait, max(1.0, limit / 4))
