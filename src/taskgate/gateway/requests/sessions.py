"""Sessions of stateful callers: what they declared, what they have in flight, and what we have asked them.

A session is bound to the principal that opened it. It ends by DELETE, by thirty idle minutes without an open call, or with the
gateway; closing a stream does not end it. How messages reach the caller is the transport's business: it gives it an outlet.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from taskgate import clock
from taskgate.core import wire
from taskgate.core.catalog.apps import supports_apps
from taskgate.core.errors import CallerError, GatewayFault
from taskgate.core.generations import Generation, Opening, declares_tasks, speaks_tasks
from taskgate.core.identity import EVERY, SESSION, Caller, ConversationKey, tenant_of
from taskgate.core.questions import Answer
from taskgate.core.scoping.registry import SessionRequest
from taskgate.core.wire import Kind, Message, Raw
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.outlet import CancelNote, Outlet, SessionOutlet
from taskgate.ports.replicas import CONVERSATION
from taskgate.ports.upstream import ClientProfile, LinkKey

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
QUESTION_TIMEOUT_S: Final = 600.0
MAX_IN_FLIGHT: Final = 1000
MAX_ASKS: Final = 100
UNUSED_S: Final = 10.0
"""A session in which nothing was said for so long after it was opened may make room for another."""

Keep = Callable[[Answer], Awaitable[object]]


class Session:
    def __init__(
        self, session_id: str, caller: Caller, opening: Opening, narrowing: SessionRequest, moves: int = 0
    ) -> None:
        self.id = session_id
        self.moves = moves
        """How often another gateway went on with it because the one that held it had died."""
        self.key = f"{SESSION}{session_id}"
        """Under which name an anonymous caller's lists, limits and events are kept."""
        whole = ConversationKey(self.key) if caller.anonymous else ConversationKey(caller.principal, self.key)
        self.conversation = whole
        self.stream = whole.stream
        self.caller = caller
        self.version = opening.version
        self.capabilities: Mapping[str, Any] = opening.capabilities
        self.client_info: Mapping[str, Any] = opening.client_info
        self.narrowing = narrowing
        self.task_aware = speaks_tasks(opening.version) and declares_tasks(opening.capabilities)
        self.renders_apps = supports_apps(opening.capabilities)
        self.used_tasks = False
        """Whether it has called something as a task, so that it can hear how tasks fare although it did not declare it."""
        self.log_level: str | None = None
        self.link_key = LinkKey(
            Generation.STATEFUL, caller.principal, session_id, place=caller.place, conversation=whole.stream
        )
        self.profile = ClientProfile(opening.capabilities, Raw(wire.encode(opening.client_info)), logs_unasked=True)
        self.in_flight: dict[bytes, asyncio.Task[Any]] = {}
        self.subscriptions: dict[str, str] = {}
        self.subscribing: set[str] = set()
        """Resources whose server is being asked to report changes; they count towards the limit."""
        self.watched: set[str] = set()
        """Those of its subscriptions that are kept on a link shared with others, and must be let go by name."""
        self.url_elicitations: dict[tuple[str, str], float] = {}
        """Addresses that this caller was given to open, by server and id, and until when they are good."""
        self.cancelled: deque[bytes] = deque(maxlen=100)
        self.outlet: SessionOutlet | None = None
        self.last_used = 0.0
        self.used = False
        """Whether anything was said in it after it was opened."""
        self.open_requests = 0
        self.closed = False
        self._numbers = itertools.count(1)
        self._asks: dict[bytes, tuple[asyncio.Future[Answer], Keep | None]] = {}

    def set_log_level(self, level: str) -> None:
        if level not in LOG_LEVELS:
            raise CallerError("invalid_params", f"The log level must be one of {', '.join(LOG_LEVELS)}.")
        self.log_level = level
        self.profile = msgspec.structs.replace(self.profile, log_level=level)

    def wants_log(self, level: str) -> bool:
        return passes_log_level(level, self.log_level)

    def begin(self, message_id: bytes, carrier: asyncio.Task[Any]) -> None:
        """Remember a request so that it can be cancelled; an id in use may not be used again."""
        if message_id in self.in_flight:
            raise CallerError("invalid_request", "A request with this id is still being answered.")
        if len(self.in_flight) >= MAX_IN_FLIGHT:
            raise GatewayFault("overloaded", "This session has too many requests open; wait for some to end.")
        self.in_flight[message_id] = carrier
        self.used = True

    def end(self, message_id: bytes) -> None:
        self.in_flight.pop(message_id, None)

    def cancel(self, message_id: bytes, why: CancelNote) -> bool:
        """Cancel what is in flight under that id; unknown or finished ids are ignored (basic/utilities/cancellation)."""
        task = self.in_flight.pop(message_id, None)
        return task.cancel(why) if task is not None else False

    def touch(self, now: float) -> None:
        self.last_used = now
        self.used = True

    def begin_life(self, now: float) -> None:
        """It was opened just now, and nothing was said in it yet."""
        self.last_used = now

    def attach(self, outlet: SessionOutlet) -> None:
        """How its caller is reached outside any request."""
        self.outlet = outlet

    def stream_opened(self) -> None:
        """A long-lived stream of its caller keeps it from being idle."""
        self.open_requests += 1

    def stream_closed(self) -> None:
        self.open_requests -= 1

    def use_inbox(self) -> None:
        """Questions that its caller cannot be asked may wait for it."""
        self.profile = msgspec.structs.replace(self.profile, inbox=True)

    def uses_tasks(self) -> None:
        """Its caller has called something as a task: it can hear how tasks fare. What it is shown follows what it declared."""
        self.used_tasks = True

    def close(self) -> None:
        """Nothing goes to its caller any more, and what it has in flight is cancelled."""
        self.closed = True
        for task in list(self.in_flight.values()):
            task.cancel()

    def remember_cancelled(self, message_id: bytes) -> None:
        """So that asking for the same cancel again gets the same answer."""
        if message_id not in self.cancelled:
            self.cancelled.append(message_id)

    async def ask(
        self,
        method: str,
        params: bytes | None,
        outlet: Outlet | None = None,
        timeout_s: float = QUESTION_TIMEOUT_S,
        keep: Keep | None = None,
    ) -> Answer:
        """Send the caller a request and wait for its answer. Raises TimeoutError; tells the caller when given up.

        `keep` makes an answer durable, and comes before it is acknowledged.
        """
        target = outlet or self.outlet
        if target is None or self.closed or len(self._asks) >= MAX_ASKS:
            return Answer(error=wire.encode({"code": -32603, "message": "The caller cannot be asked at the moment."}))
        key = b"%d" % next(self._numbers)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asks[key] = answer, keep
        try:
            target.send(wire.request(key, wire.encode(method), params))
            async with asyncio.timeout(timeout_s):
                return await answer
        except (asyncio.CancelledError, TimeoutError):
            reason = wire.encode({"requestId": int(key), "reason": "No answer is needed any more."})
            target.send(wire.notification("notifications/cancelled", reason))
            raise
        finally:
            del self._asks[key]

    def answered(self, message: Message) -> Callable[[], Awaitable[object]] | None:
        """A response from the caller. One to nothing that we asked is ignored.

        What it returns must be awaited before the response is acknowledged, where the transport acknowledges any.
        """
        assert message.kind is Kind.RESPONSE
        future, keep = self._asks.get(message.id or b"", (None, None))
        if future is None or future.done():
            return None
        result, error = message.raw_result, message.raw_error
        answer = Answer(bytes(result) if result is not None else None, bytes(error) if error is not None else None)
        future.set_result(answer)
        return partial(keep, answer) if keep is not None else None

    def unused(self, now: float) -> bool:
        """Opened some time ago, and nothing was ever said in it."""
        idle = not self.in_flight and not self.open_requests
        return idle and not self.used and now - self.last_used > UNUSED_S

    def notify(self, method: str, params: bytes | None) -> None:
        if self.outlet is not None and not self.closed:
            self.outlet.send(wire.notification(method, params))


def too_many(said: str) -> GatewayFault:
    return GatewayFault("overloaded", f"{said}; end some, or try again later.", retry_after_s=30)


@dataclass(frozen=True, slots=True)
class _Full:
    """A limit that is reached: what to say, and which sessions count towards it."""

    said: str
    counts: Callable[[Session], bool]


class SessionTable:
    """All sessions of a gateway, within limits: in all, of one caller, and of all callers without an identity."""

    def __init__(self, plan: Live[Plan]) -> None:
        self._plan = plan
        self._sessions: dict[str, Session] = {}
        self._of_principal: dict[str, dict[str, Session]] = {}
        self._of_caller: Counter[str] = Counter()
        self._of_tenant: Counter[str] = Counter()
        self._anonymous = 0
        self._never_used: dict[str, Session] = {}
        """Oldest first. One that was used meanwhile is dropped when it is met, so looking for one costs little however often."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Any:
        return iter(list(self._sessions.values()))

    def open(self, caller: Caller, opening: Opening, narrowing: SessionRequest, now: float) -> Session:
        full = self._full_for(caller)
        if full is not None:
            raise too_many(full.said)
        session = Session(secrets.token_urlsafe(24), caller, opening, narrowing)
        self.put_back(session, now)
        return session

    def put_back(self, session: Session, now: float) -> None:
        """One that exists already goes on here, also beyond the limits: it was admitted when it was opened."""
        session.begin_life(now)
        self._sessions[session.id] = self._never_used[session.id] = session
        self._of_principal.setdefault(session.caller.principal, {})[session.id] = session
        self._of_caller[session.caller.limit_key] += 1
        if tenant := tenant_of(session.caller.principal):
            self._of_tenant[tenant] += 1
        self._anonymous += session.caller.anonymous

    def replaceable(self, caller: Caller) -> Session | None:
        """Where there is no room for another session of this caller: the oldest that was opened and never used, if there is one.

        A client that gave up, or one that only opens sessions, leaves such ones behind; nobody misses them.
        """
        full = self._full_for(caller)
        return self.unused(full.counts) if full is not None else None

    def unused(self, counts: Callable[[Session], bool]) -> Session | None:
        """The oldest of these that was opened and never used."""
        now, found, used = clock.monotonic(), None, list[str]()
        for session in self._never_used.values():
            if session.used:
                used.append(session.id)
            elif now - session.last_used <= UNUSED_S:
                break  # and those after it are younger still
            elif counts(session) and session.unused(now):
                found = session
                break
        for session_id in used:
            del self._never_used[session_id]
        return found

    def _full_for(self, caller: Caller) -> _Full | None:
        limits, key = self._plan.value.limits, caller.limit_key
        if len(self._sessions) >= limits.sessions:
            return _Full("The gateway has too many sessions", lambda _session: True)
        if self._of_caller[key] >= limits.sessions_per_caller:
            return _Full("You have too many sessions", lambda session: session.caller.limit_key == key)
        tenant, most = tenant_of(caller.principal), limits.sessions_per_tenant
        if tenant and most is not None and self._of_tenant[tenant] >= most:
            return _Full(
                "Your tenant has too many sessions", lambda session: tenant_of(session.caller.principal) == tenant
            )
        if caller.anonymous and self._anonymous >= limits.anonymous_sessions:
            return _Full("Callers without a token have too many sessions", lambda session: session.caller.anonymous)
        return None

    def find(self, session_id: str, caller: Caller, now: float) -> Session | None:
        """The session, if it is this caller's; a foreign one looks like one that does not exist."""
        session = self._sessions.get(session_id)
        if session is None or session.caller.principal != caller.principal or session.caller.scope != caller.scope:
            return None
        session.touch(now)
        return session

    def get(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def of_principal(self, principal: str) -> list[Session]:
        """Those that this principal has open, oldest first."""
        return list(self._of_principal.get(principal, {}).values())

    def remove(self, session: Session) -> bool:
        """Close a session; False if it is closed already. What goes with it is the business of `session_ends`."""
        if self._sessions.pop(session.id, None) is None:
            return False
        self._never_used.pop(session.id, None)
        self._forget(session)
        session.close()
        return True

    def _forget(self, session: Session) -> None:
        caller = session.caller
        of_principal = self._of_principal[caller.principal]
        del of_principal[session.id]
        if not of_principal:
            del self._of_principal[caller.principal]
        self._anonymous -= caller.anonymous
        self._of_caller[caller.limit_key] -= 1
        if not self._of_caller[caller.limit_key]:
            del self._of_caller[caller.limit_key]
        tenant = tenant_of(caller.principal)
        if tenant:
            self._of_tenant[tenant] -= 1
            if not self._of_tenant[tenant]:
                del self._of_tenant[tenant]

    def idle(self, now: float) -> list[Session]:
        """Those not used for too long. An open call or stream keeps a session alive however long it takes."""
        idle_s = self._plan.value.limits.session_idle_s
        return [
            session
            for session in self._sessions.values()
            if not session.in_flight and not session.open_requests and now - session.last_used > idle_s
        ]


def passes_log_level(level: str, least: str | None) -> bool:
    """Is a message of this level wanted by someone who asked for at least that one? Without a wish, everything is."""
    if least is None or level not in LOG_LEVELS:
        return True
    return LOG_LEVELS.index(level) >= LOG_LEVELS.index(least)


# Which conversations go on. A stateful one lasts as long as its session; a stateless one until nothing was heard of it
# for long.
#
# What a conversation caused is told to it alone while it goes on, and to all others of the same caller afterwards.

IDLE_S: Final = 1800.0
REMEMBERED: Final = 10_000


class OpenConversations:
    def __init__(self, sessions: SessionTable, elsewhere: Live[frozenset[str]]) -> None:
        """`elsewhere`: the ids of sessions that other gateways on the same store hold."""
        self._sessions = sessions
        self._elsewhere = elsewhere
        self._heard: OrderedDict[ConversationKey, float] = OrderedDict()
        """When something was last heard of each stateless conversation, longest ago first."""

    def heard(self, key: ConversationKey) -> bool:
        """A stateless client has called. True if its conversation was not known to go on."""
        if key.session_id is not None:
            return False
        new = key not in self._heard
        self._heard[key] = clock.monotonic()
        self._heard.move_to_end(key)
        if len(self._heard) > REMEMBERED:
            self._heard.popitem(last=False)
        return new

    def is_open(self, key: ConversationKey) -> bool:
        if key.session_id is not None:
            return self._sessions.get(key.session_id) is not None or key.session_id in self._elsewhere.value
        return key in self._heard or CONVERSATION + key.stream in self._elsewhere.value

    def may_hear(self, who: ConversationKey, whose: ConversationKey) -> bool:
        """Whether one conversation is told what another of the same caller has caused."""
        return whose.name in (who.name, EVERY) or not self.is_open(whose)

    def sessions_told_of(self, whose: ConversationKey) -> list[Session]:
        """The sessions that are told what a conversation of a principal has caused: its own, or once it has ended all of them."""
        if whose.name == EVERY or not self.is_open(whose):
            return self._sessions.of_principal(whose.caller)
        own = self._sessions.get(whose.session_id) if whose.session_id is not None else None
        return [own] if own is not None and own.conversation == whose else []

    def idle(self, now: float) -> list[ConversationKey]:
        """Those that count as ended from now on."""
        ended = []
        while self._heard and now - next(iter(self._heard.values())) > IDLE_S:
            ended.append(self._heard.popitem(last=False)[0])
        return ended
