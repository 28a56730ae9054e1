"""How the gateway talks to an upstream server, whatever its transport and generation.

A *link* is one live conversation with one server. Requests on it go out with the caller's params (raw members), and come back as
a `Result`, an `ErrorReply` or, from stateless servers only, as `InputRequired`. While a request is open the server may send
notifications and ask questions; both reach the request's own hooks where the transport tells which request they belong to, and
the link's `Listener` where it does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import msgspec

from taskgate.core.catalog.apps import APP_MIME, UI_EXTENSION
from taskgate.core.errors import Executed, TaskgateError, UpstreamError
from taskgate.core.events import EventKind
from taskgate.core.evidence import Evidence, Moment, judge
from taskgate.core.generations.generation import Generation
from taskgate.core.questions.capabilities import with_inbox, with_models
from taskgate.core.questions.question import Answer, Question, not_supported
from taskgate.core.text.plain_text import visible
from taskgate.core.wire import Members, Raw


class StreamNotice(Enum):
    PRIMED = "primed"
    PAUSED = "paused"


class ClientProfile(msgspec.Struct, frozen=True):
    """What an upstream is told about the caller: capabilities, identity for display, wished log level."""

    capabilities: Mapping[str, Any]
    client_info: Raw | None = None
    log_level: str | None = None
    inbox: bool = False
    """Questions that the caller cannot answer natively may wait for it, so they may be asked all the same."""
    logs_unasked: bool = False
    """Stateful callers hear log lines before they ever set a level; stateless ones only if the request asks for them."""

    def towards(self, keeps_questions: bool, asks_models: bool = False, *, shared: bool = False) -> ClientProfile:
        """As a server sees it: one whose questions may wait, or be answered by a model, is told that they can be asked. On a link
        that others share, whoever comes first must not decide what the rest can be asked.
        """
        capabilities = LISTING_PROFILE.capabilities if shared else self.capabilities
        if self.inbox and keeps_questions:
            capabilities = with_inbox(capabilities)
        if asks_models:
            capabilities = with_models(capabilities)
        return self if capabilities is self.capabilities else msgspec.structs.replace(self, capabilities=capabilities)


LISTING_PROFILE: Final = ClientProfile(
    {
        "elicitation": {"form": {}, "url": {}},
        "sampling": {"tools": {}, "context": {}},
        "roots": {"listChanged": True},
        "extensions": {UI_EXTENSION: {"mimeTypes": [APP_MIME]}},
    }
)
"""What is declared where no single caller speaks: on links that several share, and on the one that lists are fetched over. Servers
leave out tools that need what their client did not declare, and the gateway finds out for each question who can answer it."""


class UpstreamCall(msgspec.Struct, frozen=True):
    """One thing to ask of one upstream, with the upstream's own names in it, and where what comes back meanwhile goes. `params`
    hold no progress token and no stateless envelope of ours.
    """

    method: str
    params: Members
    profile: ClientProfile
    timeout_s: float
    on_notification: Callable[[str, Raw | None], None]
    on_question: Callable[[Question], Awaitable[Answer]]
    name: str = ""
    """What is called, read or followed: the tool, prompt, URI or task, as the upstream knows it."""
    wants_progress: bool = False
    progress_token: Raw | None = None
    """The caller's own progress token, for updates that arrive after the reply on a link of this caller alone."""
    keep_envelope: bool = False
    """The params already carry a stateless caller's own envelope, to be passed on as it came."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """`Mcp-Param-*` headers for a stateless HTTP upstream."""
    asker: str = ""
    """The conversation that this call belongs to, by the name of its stream. Empty for what the gateway asks for itself."""
    side: CallSide | None = None
    """The caller's side of it, for questions that its server does not tie to a call."""
    trace: tuple[tuple[bytes, bytes], ...] = ()
    """The trace context for an upstream over HTTP; empty unless requests are traced."""
    send_log: SendLog | None = None
    """Told of every time the call is sent again by the link itself."""
    long_lived: bool = False
    """It may take long: it takes none of the connections that are kept for plain calls, and whoever sends it bounds how many
    there are."""
    read_in_parts: bool = False
    """Whoever asks reads the result part by part and holds each to the limits of a message; the whole may be beyond them."""
    on_stream: Callable[[StreamNotice, int | None], None] | None = None
    """Told when a stateful HTTP upstream primes its stream for resumption, or hangs up to be asked again."""

    def with_params(self, params: Members) -> UpstreamCall:
        """The same call in its next round, or under a trace."""
        return msgspec.structs.replace(self, params=params)


class CallSide(Protocol):
    """The caller's side of one open call, as far as a question concerns it that the server did not tie to a call."""

    def can_carry(self, question: Question) -> bool:
        """Whether the caller can be asked with the reply of this call, now."""
        ...

    def can_keep(self) -> bool:
        """Whether a question can wait with this call until its caller comes back for it."""
        ...

    def server_waits(self, text: str | None) -> None:
        """The server waits for an answer elsewhere, which this call is to report in these words; None: not any more."""
        ...


def own_call(
    method: str,
    params: Members,
    profile: ClientProfile,
    timeout_s: float,
    *,
    name: str = "",
    read_in_parts: bool = False,
) -> UpstreamCall:
    """What the gateway asks for itself: notifications meanwhile are ignored, and questions are refused."""
    return UpstreamCall(method, params, profile, timeout_s, _ignore, _refuse, name=name, read_in_parts=read_in_parts)


def _ignore(_method: str, _params: Raw | None) -> None:
    return None


async def _refuse(question: Question) -> Answer:
    return not_supported(question.method)


class Result(msgspec.Struct, frozen=True):
    raw: bytes


class ErrorReply(msgspec.Struct, frozen=True):
    """A JSON-RPC error object, as the upstream wrote it."""

    raw: bytes
    code: int


class InputRequired(msgspec.Struct, frozen=True):
    """A stateless upstream needs answers before it goes on."""

    requests: Mapping[str, Raw]
    state: Raw | None
    raw: bytes


Reply = Result | ErrorReply | InputRequired


class RelayedError(Exception):
    """An upstream's own error, to be handed to the caller as it came."""

    def __init__(self, raw: bytes, code: int) -> None:
        super().__init__(f"upstream error {code}")
        self.raw = raw
        self.code = code


_ADVICE: Final = {
    Executed.NO: "The call was not executed; it is safe to try again.",
    Executed.MAYBE: "The call may or may not have taken effect; check before trying again.",
    Executed.YES: "The call was executed.",
}


class CallFailed(UpstreamError):
    """A message that got no answer, with what its transport saw. `executed` is for the first round of a call."""

    keeps_its_kind: ClassVar[bool] = False
    """Whether somebody further up can do something about it, and must be able to tell."""

    def __init__(
        self,
        error_type: str,
        server: str,
        why: str,
        evidence: Evidence,
        *,
        round_number: int = 1,
        advice: str = "",
        message: str = "",
        detail: str = "",
    ) -> None:
        executed = judge(evidence, round_number=round_number).executed
        super().__init__(
            error_type,
            message or f"The server {server} {why}. {_ADVICE[executed]}{advice}",
            executed=executed,
            retry_after_s=evidence.retry_after_s,
        )
        self.server = server
        self.why = why
        self.evidence = evidence
        self.detail = detail
        """What only operators are told: it may name addresses and files."""

    def in_round(self, round_number: int) -> CallFailed:
        """The same failure, of a later round: the call has been executed at least in part."""
        return CallFailed(
            self.error_type, self.server, self.why, self.evidence, round_number=round_number, detail=self.detail
        )

    def after_ping(self, refused: bool) -> CallFailed:
        """The same failure, after a ping on the same session was refused likewise, or was not."""
        evidence = msgspec.structs.replace(self.evidence, ping_refused=refused)
        return CallFailed(self.error_type, self.server, self.why, evidence, detail=self.detail)


MOST_DETAIL: Final = 300


def for_operators(problem: TaskgateError) -> str:
    """What went wrong, with what callers are not told."""
    detail = problem.detail if isinstance(problem, CallFailed) else ""
    return f"{problem.message} ({visible(detail[:MOST_DETAIL])})" if detail else problem.message


def never_sent(server: str, problem: UpstreamError) -> CallFailed:
    """What went wrong before the call could be sent: whatever it says of the handshake, the call was not executed."""
    if isinstance(problem, CallFailed) and problem.keeps_its_kind:
        return problem
    why, detail = "could not be connected to", ""
    if isinstance(problem, CallFailed):
        why, detail = problem.why, problem.detail
    message = problem.message if problem.executed is Executed.NO else ""
    return CallFailed("upstream_unreachable", server, why, Evidence(Moment.NOT_SENT), message=message, detail=detail)


class SendLog(Protocol):
    """Who must know of every time a call is sent: the durable record of a task. A plain call has none."""

    async def refused(self) -> None:
        """What was sent last is proven not to have been executed."""
        ...

    async def sends_again(self) -> None:
        """The same message is about to be sent again. Raises if that may not be."""
        ...


class Listener(Protocol):
    """Who hears what a server says outside any request."""

    def on_notification(self, link: Link, method: str, params: Raw | None) -> None: ...

    async def on_question(self, link: Link, question: Question, calls: Sequence[UpstreamCall]) -> Answer:
        """A question that nothing ties to a call. `calls`: what callers had open on the link when it came, oldest first."""
        ...

    def on_closed(self, link: Link, reason: TaskgateError | None) -> None: ...

    def on_server(self, server: str, kind: EventKind, data: Mapping[str, Any], key: LinkKey | None = None) -> None:
        """The server came, went, or is not well; with a key if that is about one conversation only."""
        ...


class Link(Protocol):
    """One live conversation with one server."""

    @property
    def server(self) -> str: ...

    @property
    def key(self) -> LinkKey: ...

    @property
    def generation(self) -> Generation: ...

    @property
    def capabilities(self) -> Mapping[str, Any]: ...

    @property
    def instructions(self) -> str | None:
        """What the server says about how to use it."""
        ...

    @property
    def session_id(self) -> str | None: ...

    @property
    def alive(self) -> bool: ...

    async def request(self, request: UpstreamCall) -> Reply: ...

    async def notify(self, method: str, params: bytes | None) -> None: ...

    async def set_log_level(self, level: str) -> None: ...

    async def ask_again(self, timeout_s: float) -> None:
        """Ask anew what the server can do, where nothing would tell us that another one has taken its place: it has no session
        and no connection that could be lost.
        """
        ...

    async def resume_session(self, session_id: str) -> None:
        """Go on in a session that was opened before a restart, where the transport has such a thing."""
        ...


LISTENER: Final = "listener"
"""Stands for the session on the key of a link that only fetches lists and hears of changes."""


class LinkKey(NamedTuple):
    """Which conversation a caller gets: one for all, one per principal, or one per session; each in one generation."""

    generation: Generation
    """Of the caller; on a link, the one that the link speaks. A server that speaks both is spoken to as its caller speaks."""
    principal: str = ""
    session: str = ""
    resumes: str = ""
    """The upstream's own session that this conversation goes on with, because a task of ours lives there."""
    place: str = ""
    """Whose folder and environment a process is started in; empty: ours."""
    conversation: str = ""
    """The caller's conversation, by the name of its stream; on a link only beside its session."""


class ServerState(Enum):
    IDLE = "idle"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    DEGRADED = "degraded"
    RECONNECTING = "reconnecting"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ServerStatus:
    state: ServerState
    generations: tuple[Generation, ...] = ()
    """Those that the server is known to speak: of a server that speaks both, only what somebody has needed so far."""
    reconnect_attempt: int = 0
    next_retry_ms: int | None = None
    last_error: str | None = None
    stderr: tuple[str, ...] = field(default=())
    printed: str = ""
    """The first thing that a program wrote to stdout, where only messages belong, and that is no message."""


class Upstream(Protocol):
    """One configured server."""

    @property
    def id(self) -> str: ...

    @property
    def transport(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Changes when the configuration points to another server; tells nothing secret."""
        ...

    async def listening_link(self) -> Link:
        """The link that lists are fetched over and that hears `list_changed`."""
        ...

    async def link(self, caller: LinkKey, profile: ClientProfile) -> Link: ...

    def common_link(self, generation: Generation) -> Link | None:
        """The one open link that serves every caller of this generation, where the server needs no more than one."""
        ...

    def mark_long_lived(self, sent_as: SendLog) -> None:
        """The call with this record of its sends has become a task: what it holds is no longer a plain call's."""
        ...

    def open_link(self, caller: LinkKey) -> Link | None:
        """The caller's link if it is open already; nothing is opened for it."""
        ...

    async def watch(self, uri: str, caller: LinkKey) -> None:
        """Follow a resource on behalf of callers who cannot subscribe themselves; counted, shared."""
        ...

    async def unwatch(self, uri: str, caller: LinkKey) -> None: ...

    def separate_conversations(self) -> bool:
        """From now on new conversations get a link of their own. False where the configuration decides, or where they had one."""
        ...

    async def end_idle(self) -> None:
        """Now and then: end links of single conversations that nothing has used for long."""
        ...

    async def release(self, session: str) -> None:
        """A caller's session ended: whatever was open for it alone may go."""
        ...

    async def reconnect(self) -> None:
        """Try to reach it now, whatever the back-off says; returns when it answers, raises when it does not."""
        ...

    def status(self) -> ServerStatus: ...

    def stderr(self, caller: LinkKey) -> tuple[str, ...]:
        """The last lines that this caller's own process wrote, where it has one."""
        ...

    async def close(self) -> None: ...
