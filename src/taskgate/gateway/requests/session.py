"""One session of a stateful caller: what the caller declared, its requests in flight, and the gateway's open requests to it.

A session is bound to the principal that opened it. It ends by DELETE, after thirty idle minutes without an open call, or with the
gateway; closing a stream does not end it. The transport attaches the outlet through which messages reach the caller.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.apps import supports_apps
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.generations.generation import Generation
from taskgate.core.generations.stateful import InitializeParams, declares_tasks, supports_tasks
from taskgate.core.identity.caller import Caller
from taskgate.core.identity.conversation import SESSION, ConversationKey
from taskgate.core.questions.question import Answer
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.wire import Kind, Message
from taskgate.ports.cancel_note import CancelNote
from taskgate.ports.client_profile import ClientProfile
from taskgate.ports.link import LinkKey
from taskgate.ports.outlet import Outlet, SessionOutlet

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
QUESTION_TIMEOUT_S: Final = 600.0
MAX_IN_FLIGHT: Final = 1000
MAX_OPEN_REQUESTS: Final = 100
UNUSED_S: Final = 10.0
MAX_CANCELLED: Final = 100
"""A session without a request for this long after it was opened may be replaced by another one."""
Keep = Callable[[Answer], Awaitable[object]]


class Session:
    __slots__ = (
        "__weakref__",
        "_numbers",
        "_open_requests",
        "by_stdio",
        "caller",
        "cancelled",
        "capabilities",
        "client_info",
        "closed",
        "conversation",
        "id",
        "in_flight",
        "key",
        "last_used",
        "link_key",
        "log_level",
        "moves",
        "narrowing",
        "open_requests",
        "opened",
        "outlet",
        "profile",
        "renders_apps",
        "stream",
        "subscribing",
        "subscriptions",
        "task_aware",
        "url_elicitations",
        "used",
        "used_tasks",
        "version",
        "watched",
    )

    def __init__(
        self, session_id: str, caller: Caller, opening: InitializeParams, narrowing: SessionRequest, moves: int = 0
    ) -> None:
        self.id = session_id
        self.moves = moves
        """How often another gateway took the session over because its home had died."""
        self.key = f"{SESSION}{session_id}"
        """The key of an anonymous caller's lists, limits and events."""
        whole = ConversationKey(self.key) if caller.anonymous else ConversationKey(caller.principal, self.key)
        self.conversation = whole
        self.stream = whole.stream
        self.caller = caller
        self.version = opening.version
        self.capabilities: Mapping[str, Any] = opening.capabilities
        self.client_info: Mapping[str, Any] = opening.client_info
        self.narrowing = narrowing
        self.task_aware = supports_tasks(opening.version) and declares_tasks(opening.capabilities)
        self.renders_apps = supports_apps(opening.capabilities)
        self.used_tasks = False
        """Whether the caller has called a tool as a task: then it gets task notifications although it did not declare them."""
        self.log_level: str | None = None
        self.link_key = LinkKey(
            Generation.STATEFUL, caller.principal, session_id, place=caller.place, conversation=whole.stream
        )
        self.profile = ClientProfile(opening.capabilities, opening.client_info, logs_unasked=True)
        self.in_flight: dict[bytes, asyncio.Task[Any]] = {}
        self.subscriptions: dict[str, str] = {}
        self.subscribing: dict[str, None] = {}
        """Resources with a subscription request in progress; they count towards the limit."""
        self.watched: dict[str, None] = {}
        """Subscriptions over a link that is shared with other sessions, which must be ended one by one."""
        self.url_elicitations: dict[tuple[str, str], float] = {}
        """URLs that the caller was asked to open, by server and id, with their expiry."""
        self.cancelled: dict[bytes, None] = {}
        """Ids of cancelled requests, oldest first. A dictionary, because an empty deque takes ten times as much memory."""
        self.outlet: SessionOutlet | None = None
        self.last_used = self.opened = 0.0
        self.by_stdio = False
        self.used = False
        """Whether the session got a request after it was opened."""
        self.open_requests = 0
        self.closed = False
        self._numbers = itertools.count(1)
        self._open_requests: dict[bytes, tuple[asyncio.Future[Answer], Keep | None]] = {}

    def set_log_level(self, level: str) -> None:
        if level not in LOG_LEVELS:
            raise CallerError("invalid_params", f"The log level must be one of {', '.join(LOG_LEVELS)}.")
        self.log_level = level
        self.profile = msgspec.structs.replace(self.profile, log_level=level)

    def accepts_log(self, level: str) -> bool:
        return passes_log_level(level, self.log_level)

    def begin(self, message_id: bytes, carrier: asyncio.Task[Any]) -> None:
        """Record a request so that it can be cancelled. Raises CallerError if its id is in use."""
        if message_id in self.in_flight:
            raise CallerError("invalid_request", "A request with this id is still being answered.")
        if len(self.in_flight) >= MAX_IN_FLIGHT:
            raise GatewayFault("overloaded", "This session has too many requests open; wait for some to end.")
        self.in_flight[message_id] = carrier
        self.used = True

    def end(self, message_id: bytes) -> None:
        self.in_flight.pop(message_id, None)

    def cancel(self, message_id: bytes, why: CancelNote) -> bool:
        """Cancel the request with this id. Unknown and finished ids are ignored (basic/utilities/cancellation)."""
        task = self.in_flight.pop(message_id, None)
        return task.cancel(why) if task is not None else False

    def touch(self, now: float) -> None:
        self.last_used = now
        self.used = True

    def mark_opened(self, now: float) -> None:
        """Start the idle time of a session that has not had a request yet."""
        self.last_used = self.opened = now

    def mark_recorded(self) -> None:
        """The duration of the session was recorded. Its end may be published again at shutdown."""
        self.opened = 0.0

    def mark_stdio(self) -> None:
        """Note that the caller is connected by stdio and not by HTTP."""
        self.by_stdio = True

    def attach(self, outlet: SessionOutlet) -> None:
        """Set the outlet for messages outside of a request."""
        self.outlet = outlet

    def stream_opened(self) -> None:
        """Count a long-lived stream of the caller, which keeps the session from being idle."""
        self.open_requests += 1

    def stream_closed(self) -> None:
        self.open_requests -= 1

    def use_inbox(self) -> None:
        """Let questions that the caller does not support wait in its inbox."""
        self.profile = msgspec.structs.replace(self.profile, inbox=True)

    def mark_task_use(self) -> None:
        """Send task notifications to the caller from now on. What it is shown still follows what it declared."""
        self.used_tasks = True

    def close(self) -> None:
        """Stop sending to the caller and cancel its requests in flight."""
        self.closed = True
        for task in list(self.in_flight.values()):
            task.cancel()

    def remember_cancelled(self, message_id: bytes) -> None:
        """Remember a cancelled request, so that a repeated cancellation gets the same reply."""
        if message_id not in self.cancelled:
            if len(self.cancelled) >= MAX_CANCELLED:
                del self.cancelled[next(iter(self.cancelled))]
            self.cancelled[message_id] = None

    async def ask(
        self,
        method: str,
        params: bytes | None,
        outlet: Outlet | None = None,
        timeout_s: float = QUESTION_TIMEOUT_S,
        keep: Keep | None = None,
    ) -> Answer:
        """Send the caller a request and wait for its response. Raises TimeoutError, after sending a cancellation.

        `keep` stores the answer durably before it is acknowledged.
        """
        target = outlet or self.outlet
        if target is None or self.closed or len(self._open_requests) >= MAX_OPEN_REQUESTS:
            return Answer(error=wire.encode({"code": -32603, "message": "The caller cannot be asked now."}))
        key = b"%d" % next(self._numbers)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open_requests[key] = answer, keep
        try:
            target.send(wire.request(key, wire.encode(method), params))
            async with asyncio.timeout(timeout_s):
                return await answer
        except (asyncio.CancelledError, TimeoutError):
            reason = wire.encode({"requestId": int(key), "reason": "No answer is needed any more."})
            target.send(wire.notification("notifications/cancelled", reason))
            raise
        finally:
            del self._open_requests[key]

    def answered(self, message: Message) -> Callable[[], Awaitable[object]] | None:
        """Handle a response of the caller. A response without a request is ignored.

        The result must be awaited before a transport acknowledges the response.
        """
        assert message.kind is Kind.RESPONSE
        future, keep = self._open_requests.get(message.id or b"", (None, None))
        if future is None or future.done():
            return None
        result, error = message.raw_result, message.raw_error
        answer = Answer(bytes(result) if result is not None else None, bytes(error) if error is not None else None)
        future.set_result(answer)
        return partial(keep, answer) if keep is not None else None

    def unused(self, now: float) -> bool:
        """Whether the session was opened some time ago and never had a request."""
        idle = not self.in_flight and not self.open_requests
        return idle and not self.used and now - self.last_used > UNUSED_S

    def notify(self, method: str, params: bytes | None) -> None:
        if self.outlet is not None and not self.closed:
            self.outlet.send(wire.notification(method, params))

    def announce(self, notification: bytes) -> None:
        """Send a notification without content, unless the same one still waits to be read."""
        if self.outlet is not None and not self.closed:
            self.outlet.send_once(notification)


def passes_log_level(level: str, minimum: str | None) -> bool:
    """Whether a log message of this level reaches the requested minimum. Without a minimum, all do."""
    if minimum is None or level not in LOG_LEVELS:
        return True
    return LOG_LEVELS.index(level) >= LOG_LEVELS.index(minimum)
