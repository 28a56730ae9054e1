"""A request of ours that is on its way to a server, the wire that carries it, and how what comes back is read."""

from __future__ import annotations

import itertools
from typing import Any, Final, Protocol
from weakref import WeakSet

import msgspec

from taskgate.core import wire
from taskgate.core.errors import Executed, TaskgateError, UpstreamError
from taskgate.core.evidence import Body, Evidence, Moment
from taskgate.core.generations.generation import RELATED_TASK
from taskgate.core.meta import meta_of
from taskgate.core.questions.question import SAMPLE, without_related_task
from taskgate.core.sampling.spec_shapes import spec_shapes
from taskgate.core.wire import MalformedJson, Message, MessageReader, Raw
from taskgate.ports.credentials import HeaderPairs
from taskgate.ports.upstream import CallFailed, StreamNotice, UpstreamCall
from taskgate.upstreams.secret_filter import SecretFilter

next_number: Final = itertools.count(1).__next__
"""Ids of our requests, and their progress tokens: never the same twice in this process, so that an answer which strays to
another link, session or connection fits no request there."""


class Flight(msgspec.Struct):
    number: int
    timeout_s: float
    request: UpstreamCall | None = None

    def tell(self, news: StreamNotice, retry_ms: int | None = None) -> None:
        """How the stream of its answer fares, for a caller who has one himself."""
        if self.request is not None and self.request.on_stream is not None:
            self.request.on_stream(news, retry_ms)

    @property
    def read_in_parts(self) -> bool:
        """Whether its result may be beyond the limits of a message."""
        return self.request is not None and self.request.read_in_parts


class Receiver(Protocol):
    """The link, as its wire sees it."""

    def incoming(self, message: Message, flight: Flight | None) -> None: ...

    def lost(self, reason: UpstreamError | None) -> None:
        """None: we let go of it ourselves, and nobody need hear of that."""
        ...


class Wire(Protocol):
    secret_filter: SecretFilter
    """Knows the credentials that this wire sends."""
    session_id: str | None
    is_conversation: bool
    """Whether the connection itself is the conversation, so that nobody can take the server's place unnoticed."""

    def attach(self, receiver: Receiver) -> None: ...

    def settle(self, version: str) -> None:
        """The revision is agreed; HTTP repeats it in a header from now on."""
        ...

    def use_session(self, session_id: str | None) -> None:
        """Go on in another session of the server than the one it gave us; None: leave it open there when we close."""
        ...

    def begin_again(self) -> None:
        """A new handshake comes: what the last one agreed on is forgotten."""
        ...

    async def request(self, flight: Flight, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Message: ...

    def mark_long_lived(self, flight: Flight) -> None:
        """The call has become a task: whatever it holds is no longer a plain call's."""
        ...

    async def send(self, body: bytes) -> None: ...

    async def renew_credentials(self, refused: CallFailed) -> bool:
        """Whether there is other proof of who we are than the one that was refused. Raises LoginNeeded."""
        ...

    def listen(self) -> None:
        """Start hearing what the server says outside any request, where that needs a stream of its own."""
        ...

    async def close(self) -> None: ...


class HttpRefusal(CallFailed):
    """The server answered with an HTTP status instead of a JSON-RPC response that carries our id."""

    def __init__(
        self,
        server: str,
        status: int,
        *,
        request_sent: bool = True,
        in_session: bool = False,
        retry_after_s: float | None = None,
        error: bytes | None = None,
        proof: HeaderPairs = (),
        challenge: str = "",
    ) -> None:
        # An answer that came before the whole request had left cannot be about its execution.
        moment = Moment.ANSWERED if request_sent else Moment.NOT_SENT
        # A server that wants more rights says what would cure it, like one that does not take the token at all.
        judged = 401 if status == 403 and "insufficient_scope" in challenge else status
        evidence = Evidence(moment, judged, in_session=in_session, retry_after_s=retry_after_s)
        super().__init__("upstream_unreachable", server, _said(status, in_session, error), evidence)
        self.status = status
        self.error = error
        """A JSON-RPC error object that came without our id."""
        self.proof = proof
        """What the refused message said about who we are."""
        self.challenge = challenge
        """What the server wants to see instead: its `WWW-Authenticate`."""


_SAID_OF_AN_ERROR: Final = 200


def _said(status: int, in_session: bool, error: bytes | None) -> str:
    if status == 404 and in_session:
        return "no longer knows the session"
    if error is None:
        return f"refused the request with HTTP {status}"
    said = wire.parse_strictly(error).get("message")
    text = said[:_SAID_OF_AN_ERROR] if type(said) is str else ""
    return f"refused the request with HTTP {status}: {text}".rstrip(": .")


class SessionGone(HttpRefusal):
    """The server no longer knows our session: nothing was executed, a new handshake may cure it."""

    def __init__(self, server: str) -> None:
        super().__init__(server, 404, in_session=True)


class HandshakeRefused(CallFailed):
    """The server answered our greeting, and said no: it may speak another generation."""

    def __init__(self, server: str, why: str) -> None:
        super().__init__("upstream_unreachable", server, why, Evidence(Moment.NOT_SENT))


_PEEK: Final = 400


def looks_like_answer(begin: bytes) -> bool:
    """Whether a message of which only the beginning is known is a response, and not a request or a notification."""
    return (b'"result"' in begin[:_PEEK] or b'"error"' in begin[:_PEEK]) and b'"method"' not in begin[:_PEEK]


def unreachable(server: str, why: str, executed: Executed = Executed.NO) -> CallFailed:
    moment = Moment.NOT_SENT if executed is Executed.NO else Moment.SENT
    return CallFailed("upstream_unreachable", server, why, Evidence(moment))


def timed_out(server: str, seconds: float) -> CallFailed:
    why = f"did not answer within {seconds:g} s"
    return CallFailed("upstream_timeout", server, why, Evidence(Moment.TIMED_OUT))


def broke_protocol(server: str, why: str) -> CallFailed:
    return CallFailed("upstream_protocol", server, why, Evidence(Moment.BROKEN_OFF))


def unreadable(server: str, problem: TaskgateError, secrets: SecretFilter) -> CallFailed:
    """An answer came that carries our id, and is not JSON that is accepted."""
    why = problem.reason if isinstance(problem, MalformedJson) else problem.message
    return broke_protocol(server, f"sent an answer that cannot be read ({secrets.text(why)})")


def too_large(server: str, limit: int, status: int | None = None) -> CallFailed:
    evidence = Evidence(Moment.BROKEN_OFF, status, Body.TOO_LARGE)
    return CallFailed(
        "result_too_large",
        server,
        f"answered with more than {limit} bytes (limits.result_bytes)",
        evidence,
        advice=" Ask for less at a time.",
    )


# What is accepted from any server: how long a message may be, and how deep and how full.
#
# All servers of a gateway share one, so that a reload changes the limits of conversations that go on.

MIB = 1024 * 1024


class Line(Protocol):
    """A conversation whose own buffer must know the limit."""

    def adopt(self, max_bytes: int) -> None: ...


class Intake:
    __slots__ = ("lines", "max_bytes", "reader")

    def __init__(self, max_bytes: int = 16 * MIB, reader: MessageReader | None = None) -> None:
        self.max_bytes = max_bytes
        self.reader = reader or MessageReader()
        self.lines: WeakSet[Line] = WeakSet()

    def adopt(self, max_bytes: int, max_depth: int, max_nodes: int) -> None:
        self.max_bytes = max_bytes
        self.reader.adopt(max_depth, max_nodes)
        for line in self.lines:
            line.adopt(max_bytes)


# The server's own tasks in what it says: read for ourselves, and taken out of what callers see.
#
# A caller knows a task of ours, never the task that a server made of our call; on a shared link that may be another
# caller's.


def related_task(params: Any) -> str | None:
    """The id of the server's task that a message names."""
    related = meta_of(params).get(RELATED_TASK)
    task_id = related.get("taskId") if type(related) is dict else None
    return task_id if type(task_id) is str else None


def shown_params(message: Message) -> Raw | None:
    """The params as they may be handed on."""
    raw = spec_shapes(message.raw_params) if message.method == SAMPLE else message.raw_params
    if raw is None or RELATED_TASK not in meta_of(message.params):
        return raw
    return without_related_task(raw, RELATED_TASK)
