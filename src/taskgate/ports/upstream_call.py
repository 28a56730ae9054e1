"""One request to a server, with the data about its caller that the link needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol

import msgspec

from taskgate.core.questions.question import Answer, Question, not_supported
from taskgate.core.wire import Members, Raw
from taskgate.ports.client_profile import ClientProfile


class StreamNotice(Enum):
    PRIMED = "primed"
    PAUSED = "paused"


class UpstreamCall(msgspec.Struct, frozen=True):
    """One request to a server, using the server's own names, with the callbacks for what arrives before its reply. `params`
    contain no progress token and no stateless envelope of the gateway.
    """

    method: str
    params: Members
    profile: ClientProfile
    timeout_s: float
    on_notification: Callable[[str, Raw | None], None]
    on_question: Callable[[Question], Awaitable[Answer]]
    name: str = ""
    """The tool, prompt, URI or task, by the server's name."""
    requests_progress: bool = False
    progress_token: Raw | None = None
    """The caller's own progress token, for updates that arrive after the reply on a link of this caller alone."""
    keep_envelope: bool = False
    """The params contain a stateless caller's own envelope, which is passed on unchanged."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """`Mcp-Param-*` headers for a stateless HTTP upstream."""
    conversation: str = ""
    """The conversation of this call, by the name of its stream. Empty for the gateway's own requests."""
    side: CallSide | None = None
    """The caller's side, for questions that the server does not tie to a call."""
    send_log: SendLog | None = None
    """Records every time the link sends the call again."""
    on_stream: Callable[[StreamNotice, int | None], None] | None = None
    """Called when a stateful HTTP server primes its stream for resumption, or disconnects to be polled."""
    trace: tuple[tuple[bytes, bytes], ...] = ()
    """The trace context for an upstream over HTTP; empty unless requests are traced."""
    long_lived: bool = False
    """It may take long: it uses none of the connections reserved for plain calls; the sender limits how many there are."""
    read_in_parts: bool = False
    """The requester reads the result in parts and applies the message limits to each; the whole may exceed them."""

    def with_params(self, params: Members) -> UpstreamCall:
        """Return the same call with other params: of its next round, or with a trace context."""
        return msgspec.structs.replace(self, params=params)


class CallSide(Protocol):
    """The caller's side of one open call, for questions that the server did not tie to a call."""

    def can_carry(self, question: Question) -> bool:
        """Return whether the caller can be asked on the reply stream of this call now."""
        ...

    def can_keep(self) -> bool:
        """Return whether a question can wait with this call until its caller returns."""
        ...

    def server_waits(self, text: str | None) -> None:
        """Report in the status of this call that the server waits for an answer elsewhere; None when it no longer does."""
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
    """Return a request of the gateway itself: notifications are ignored, and questions are refused."""
    return UpstreamCall(
        method=method,
        params=params,
        profile=profile,
        timeout_s=timeout_s,
        on_notification=_ignore,
        on_question=_refuse,
        name=name,
        read_in_parts=read_in_parts,
    )


def _ignore(_method: str, _params: Raw | None) -> None:
    return None


async def _refuse(question: Question) -> Answer:
    return not_supported(question.method)


class SendLog(Protocol):
    """Records every time a call is sent: the durable record of a task. A plain call has none."""

    async def refused(self) -> None:
        """The last attempt is proven not to have been executed."""
        ...

    async def sends_again(self) -> None:
        """The same message is about to be sent again. Raises if it must not be."""
        ...
