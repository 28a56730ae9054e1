"""What the end of an exchange with a server proves about a call: was it executed, and may it be sent again?

Transports record what they observed as `Evidence`. `failure_verdict` turns it into a verdict, in the same way for plain calls,
for tasks and for each round of a call that takes several rounds. A call is sent again only if it is proven not to have
been executed and the cause was cured, or if the class of the tool allows a repeat.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from taskgate.core.tool_class import ToolClass
from taskgate.mcp.failures import REFUSALS, Executed


class Moment(StrEnum):
    """How far the exchange had progressed when it ended."""

    NOT_SENT = "not_sent"
    """Name resolution, connect, TLS or handshake failed, or the server cannot have received the whole request."""
    SENT = "sent"
    """The last byte was sent, and the connection, the stream or the process ended before any response."""
    ANSWERED = "answered"
    """A complete response was received."""
    BROKEN_OFF = "broken_off"
    """A response was incomplete or could not be parsed."""
    TIMED_OUT = "timed_out"
    """The time limit of the call was reached."""


class Body(StrEnum):
    """What was received, as far as it belongs to this call."""

    ANSWER = "answer"
    """A JSON-RPC result or error with the id of the request."""
    TOO_LARGE = "too_large"
    """A response that exceeds the size limit."""
    OTHER = "other"
    """Nothing, or content without the id of the request."""


class Cure(StrEnum):
    """What must have happened before the same message may be sent again."""

    RECONNECT = "reconnect"
    """A pause and a new connection; as often as the time limit allows, because nothing was sent."""
    SESSION = "session"
    """A new session, once."""
    CREDENTIALS = "credentials"
    """New credentials, once."""
    WAIT = "wait"
    """The delay that the server requested, once."""
    ASK = "ask"
    """Nothing is proven yet: a ping on the same session shows whether the session is lost."""
    REPEAT = "repeat"
    """Nothing is proven, but the tool is safe to repeat: within the limit on attempts."""


class Evidence(msgspec.Struct, frozen=True):
    """What a transport observed.

    `status` is None without HTTP or without a response. `in_session`: the request named a session. `ping_refused`: a
    ping that was sent on that session afterwards was refused in the same way.
    """

    moment: Moment
    status: int | None = None
    body: Body = Body.OTHER
    in_session: bool = False
    ping_refused: bool | None = None
    retry_after_s: float | None = None


class FailureVerdict(msgspec.Struct, frozen=True):
    """`executed` refers to the whole call; `cure` to the last message sent: None means that it must not be sent again."""

    executed: Executed
    cure: Cure | None = None
    answered: bool = False


_CURES: Final = {401: Cure.CREDENTIALS, 429: Cure.WAIT}


def failure_verdict(
    evidence: Evidence, *, round_number: int = 1, tool_class: ToolClass = ToolClass.ONCE
) -> FailureVerdict:
    """Return the verdict for the message of this round (the first is 1) of a call to a tool of this class."""
    verdict = _classify_message(evidence, tool_class)
    if round_number > 1 and verdict.executed is Executed.NO:
        # An earlier round was executed, so the call has been executed at least in part.
        return FailureVerdict(Executed.MAYBE, verdict.cure)
    return verdict


def _classify_message(evidence: Evidence, tool_class: ToolClass) -> FailureVerdict:
    if evidence.body is Body.ANSWER:
        return FailureVerdict(Executed.YES, answered=True)
    if evidence.status in REFUSALS:
        return FailureVerdict(Executed.NO, _cure_of(evidence))
    if evidence.moment is Moment.NOT_SENT:
        return FailureVerdict(Executed.NO, Cure.RECONNECT)
    if evidence.status == 400 and evidence.in_session:
        return _classify_bad_request(evidence, tool_class)
    if evidence.body is Body.TOO_LARGE and (evidence.status is None or 200 <= evidence.status < 300):
        return FailureVerdict(Executed.YES)
    return _unproven(evidence, tool_class)


def _cure_of(evidence: Evidence) -> Cure | None:
    if evidence.status == 404:
        return Cure.SESSION if evidence.in_session else None
    return _CURES.get(evidence.status or 0)


def _classify_bad_request(evidence: Evidence, tool_class: ToolClass) -> FailureVerdict:
    """Many servers return 400 for an unknown session; others for a call that they did execute."""
    if evidence.ping_refused is None:
        return FailureVerdict(Executed.MAYBE, Cure.ASK)
    if evidence.ping_refused:
        return FailureVerdict(Executed.NO, Cure.SESSION)
    return _unproven(evidence, tool_class)


def _unproven(evidence: Evidence, tool_class: ToolClass) -> FailureVerdict:
    if evidence.moment is Moment.TIMED_OUT or not tool_class.may_repeat:
        return FailureVerdict(Executed.MAYBE)
    return FailureVerdict(Executed.MAYBE, Cure.REPEAT)
