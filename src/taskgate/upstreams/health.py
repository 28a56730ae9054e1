"""What a failed message proves about its call, whether the server is still there, and when it is tried again."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from taskgate import clock
from taskgate.core.errors import Executed, TaskgateError, UpstreamError
from taskgate.core.evidence import Cure, Evidence, Moment, judge
from taskgate.core.wire import Message
from taskgate.mcp.failures import HttpFailure, Stage
from taskgate.mcp.http.reader import HttpReply
from taskgate.ports.credentials import HeaderPairs
from taskgate.ports.upstream import CallFailed, Reply, UpstreamCall, for_operators, never_sent
from taskgate.upstreams.flight import HttpRefusal, broke_protocol, looks_like_answer, timed_out, too_large, unreachable

FIRST_S = 0.5
LONGEST_S = 60.0


class Backoff:
    """Counts failures in a row; one success forgets them all."""

    def __init__(self) -> None:
        self.attempt = 0
        self.retry_at = 0.0

    def failed(self, now: float) -> None:
        bound = min(LONGEST_S, FIRST_S * 2 ** min(self.attempt, 10))
        self.attempt += 1
        self.retry_at = now + random.uniform(0, bound)

    def leave_alone(self, until: float) -> None:
        """Not before this time, whatever the count says."""
        self.attempt = max(1, self.attempt)
        self.retry_at = max(self.retry_at, until)

    def succeeded(self) -> None:
        self.attempt = 0
        self.retry_at = 0.0

    def wait_s(self, now: float) -> float:
        return max(0.0, self.retry_at - now)


LEFT_ALONE_S: Final = 60.0
MOST_TOLD: Final = 300


class Trouble:
    """Why a server cannot be reached: for operators with all that is known, for callers in the words that the first was told."""

    def __init__(self) -> None:
        self.shown: str | None = None
        self._why = ""

    def noticed(self, problem: TaskgateError) -> None:
        self.shown = for_operators(problem)
        self._why = problem.why[:MOST_TOLD] if isinstance(problem, CallFailed) else ""

    def over(self) -> None:
        self.shown, self._why = None, ""

    def until(self, wait_s: float) -> str:
        """For who calls before the next attempt."""
        because = f": it {self._why}" if self._why else ""
        return f"cannot be reached{because}; the next attempt is in {wait_s:.1f} s"


class CrashLoop:
    def __init__(self, limit: int, within_s: float) -> None:
        self.limit = limit
        self.within_s = within_s
        self._crashes: deque[float] = deque(maxlen=limit)
        self._until = 0.0

    def crashed(self, now: float) -> bool:
        """Remember a crash. True if that was one too many: leave the program alone for a minute."""
        self._crashes.append(now)
        if len(self._crashes) < self.limit or now - self._crashes[0] > self.within_s:
            return False
        self._crashes.clear()
        self._until = now + LEFT_ALONE_S
        return True

    def left_alone_s(self, now: float) -> float:
        """How much longer it is left alone."""
        return max(0.0, self._until - now)


EVERY_S: Final = 30.0
WHEN_DEGRADED_S: Final = 5.0
PATIENCE_S: Final = 5.0
SILENT_ROUNDS: Final = 3


class Answering(Protocol):
    async def round_trip(self, timeout_s: float) -> None:
        """Ask the server something that costs it nothing; raises when it does not answer."""
        ...


Asked = TypeVar("Asked", bound=Answering)


class HealthWatch(Generic[Asked]):
    """`changed` hears when the server stops and starts answering, `silent` of each link that has not answered for long."""

    def __init__(
        self,
        links: Callable[[], Sequence[Asked]],
        changed: Callable[[bool, str], None],
        silent: Callable[[Asked], None],
    ) -> None:
        self.degraded = False
        self._links = links
        self._changed = changed
        self._silent = silent
        self._missed: dict[Asked, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """From now on, until there is no link to ask over."""
        if self._timer is None and self._asking is None and not self._closed:
            self._next()

    def _next(self) -> None:
        wait = WHEN_DEGRADED_S if self.degraded else EVERY_S
        self._timer = asyncio.get_running_loop().call_later(wait, self._due)

    def _due(self) -> None:
        self._timer = None
        links = self._links()
        if not links or self._closed:
            # Whoever connects again starts the watch again.
            self.degraded = False
            self._missed.clear()
            return
        self._asking = asyncio.get_running_loop().create_task(self._ask(links))

    async def _ask(self, links: Sequence[Asked]) -> None:
        found = await asyncio.gather(*(self._problem_of(link) for link in links))
        problems = [problem for problem in found if problem is not None]
        before = self._missed
        self._missed = {
            link: before.get(link, 0) + 1 for link, problem in zip(links, found, strict=True) if problem is not None
        }
        self._found(not problems, problems[0] if problems else "")
        self._asking = None
        self._next()
        for link in [link for link, rounds in self._missed.items() if rounds >= SILENT_ROUNDS]:
            self._silent(link)

    async def _problem_of(self, link: Asked) -> str | None:
        try:
            await link.round_trip(PATIENCE_S)
        except TaskgateError as problem:
            return problem.message
        return None

    def _found(self, answers: bool, why: str) -> None:
        if answers is self.degraded:
            self.degraded = not answers
            self._changed(answers, why)

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)


# What a failed message proves about its call, and whether it may be sent again.
#
# A failed exchange over HTTP, or an answer without our id, is put into words here; what it proves is decided by
# `core.errors`. A message whose refusal proves that it was not executed is sent again only after the cause was cured,
# each cause once: a session that the server lost, a token that ended, and a server that asks for patience. Called by
# the links.

_WHY: Final = {
    Stage.RESOLVE: "cannot be found by its name",
    Stage.CONNECT: "does not accept connections",
    Stage.TLS: "could not agree on a secure connection",
    Stage.POOL_FULL: "has too many calls waiting",
}


def explain(
    server: str, failure: HttpFailure, timeout_s: float | None, *, in_session: bool, max_bytes: int
) -> CallFailed:
    status = failure.status
    if failure.executed is Executed.NO or (status is not None and not 200 <= status < 300):
        why = _WHY.get(failure.stage, "broke the connection" if status is None else f"answered with HTTP {status}")
        why += f" ({failure.reason})" if failure.reason else ""
        moment = Moment.NOT_SENT if failure.executed is Executed.NO else Moment.BROKEN_OFF
        evidence = Evidence(moment, status, in_session=in_session)
        return CallFailed("upstream_unreachable", server, why, evidence, detail=failure.message)
    if failure.stage is Stage.DEADLINE:
        return timed_out(server, timeout_s or 0)
    if failure.stage is Stage.TOO_LARGE and (not failure.partial or looks_like_answer(failure.partial)):
        return too_large(server, max_bytes, status)
    return unreachable(server, _WHY.get(failure.stage, "broke the connection"), Executed.MAYBE)


def refusal(
    server: str, reply: HttpReply, message: Message | None, *, in_session: bool, proof: HeaderPairs = ()
) -> CallFailed:
    """What a reply proves that does not carry our id. `proof` is what the request said about who we are."""
    if 200 <= reply.status < 300:
        return broke_protocol(server, "did not answer with a JSON-RPC response to the request")
    return HttpRefusal(
        server,
        reply.status,
        request_sent=reply.request_sent,
        in_session=in_session,
        retry_after_s=_retry_after(reply.headers),
        error=bytes(message.raw_error) if message is not None and message.raw_error is not None else None,
        proof=proof,
        challenge=reply.headers.get(b"www-authenticate", b"")[:4096].decode("latin-1"),
    )


def _retry_after(headers: Mapping[bytes, bytes]) -> float | None:
    """Whole seconds, or a date by our own clock (RFC 9110, 10.2.3). None if it says neither."""
    asked = headers.get(b"retry-after", b"").strip()[:64]
    if asked.isdigit():
        return float(asked)
    from email.utils import parsedate_to_datetime

    try:
        until = parsedate_to_datetime(asked.decode("ascii")).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(until - clock.wall(), _USUAL_PAUSE_S)


_USUAL_PAUSE_S: Final = 1.0
_PING_S: Final = 5.0
_CURABLE: Final = frozenset({Cure.SESSION, Cure.CREDENTIALS, Cure.WAIT})


class Patient(Protocol):
    """A link whose messages are refused."""

    @property
    def server(self) -> str: ...

    async def new_session(self) -> None:
        """Greet the server again; raises UpstreamError if it does not answer."""
        ...

    async def renew_credentials(self, refused: CallFailed) -> bool:
        """Whether there is other proof of who we are than the one that was refused. Raises LoginNeeded."""
        ...

    async def ping_is_refused(self) -> bool:
        """Whether a ping in the present session is refused like a message in a session that the server does not know."""
        ...


class SessionRenewal:
    """The new handshake, while it is under way. Until it is over there is no session that anything could be sent in."""

    __slots__ = ("_renew", "_server", "running")

    def __init__(self, server: str, renew: Callable[[], Awaitable[None]]) -> None:
        self._server = server
        self._renew = renew
        self.running: asyncio.Task[None] | None = None

    async def begin_or_join(self) -> None:
        """Raises UpstreamError if the server does not shake hands."""
        if self.running is None:
            self.running = asyncio.get_running_loop().create_task(self._run())
            self.running.add_done_callback(_looked_at)
        await asyncio.shield(self.running)

    async def over(self) -> None:
        """For a message that has not been sent. Raises CallFailed if there is no session to send it in."""
        try:
            while self.running is not None:
                await asyncio.shield(self.running)
        except UpstreamError as problem:
            raise never_sent(self._server, problem) from None

    async def _run(self) -> None:
        try:
            await self._renew()
        finally:
            self.running = None


def _looked_at(done: asyncio.Task[None]) -> None:
    """Who waited has been told; nobody may be left who did."""
    if not done.cancelled():
        done.exception()


class SessionLink(Protocol):
    """A link that speaks in sessions."""

    renewal: SessionRenewal
    refuses_pings: bool
    """Also in a session that the server has just opened, so that a refusal tells nothing."""

    @property
    def server(self) -> str: ...

    @property
    def session_id(self) -> str | None: ...

    async def new_session_after(self, lost: str | None) -> None: ...

    async def renew_credentials(self, refused: CallFailed) -> bool: ...

    async def ping_refused(self, timeout_s: float) -> bool: ...


class InSession:
    """The link as the cures of one message see it: in the session that the message was sent in."""

    __slots__ = ("_link", "_session", "server")

    def __init__(self, link: SessionLink, session: str | None) -> None:
        self.server = link.server
        self._link = link
        self._session = session

    async def new_session(self) -> None:
        await self._link.new_session_after(self._session)
        self._session = self._link.session_id

    async def renew_credentials(self, refused: CallFailed) -> bool:
        return await self._link.renew_credentials(refused)

    async def ping_is_refused(self) -> bool:
        """Or, where another session is in its place already, whether one in that is answered: then it was the session."""
        link = self._link
        try:
            await link.renewal.over()
            is_present = link.session_id == self._session
            return not link.refuses_pings and await link.ping_refused(_PING_S) is is_present
        except CallFailed:
            return False


async def send_again(
    link: Patient, request: UpstreamCall, failure: CallFailed, send: Callable[[UpstreamCall], Awaitable[Reply]]
) -> Reply:
    """The reply to a message that failed once, if its causes can be cured. Raises what cannot be."""
    due = clock.monotonic() + request.timeout_s
    cured: set[Cure] = set()
    while True:
        failure = await _diagnosed(link, failure)
        cure = judge(failure.evidence).cure
        if cure is None or cure not in _CURABLE or cure in cured:
            raise failure
        cured.add(cure)
        if request.send_log is not None:
            await request.send_log.refused()
        await _apply(cure, link, failure, due)
        if request.send_log is not None:
            await request.send_log.sends_again()
        try:
            return await send(request)
        except CallFailed as again:
            failure = again


async def _diagnosed(link: Patient, failure: CallFailed) -> CallFailed:
    if judge(failure.evidence).cure is not Cure.ASK:
        return failure
    return failure.after_ping(await link.ping_is_refused())


async def _apply(cure: Cure, link: Patient, failure: CallFailed, due: float) -> None:
    if cure is Cure.WAIT:
        pause_s = failure.evidence.retry_after_s or _USUAL_PAUSE_S
        if clock.monotonic() + pause_s > due:
            raise failure
        await clock.sleep(pause_s)
        return
    if cure is Cure.CREDENTIALS:
        if not await link.renew_credentials(failure):
            raise failure
        return
    try:
        await link.new_session()
    except UpstreamError as problem:
        raise never_sent(link.server, problem) from None
