"""What the end of an exchange with a server proves about a call: was it executed, and may it be sent again?

Transports record what they observed as `Evidence`. `judge` turns it into a verdict, in the same way for plain calls,
for tasks and for each round of a call that takes several rounds. A call is sent again only if it is proven not to have
been executed and the cause was cured, or if the class of the tool allows a repeat.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from taskgate.core.tool_class import ToolClass
from taskgate.mcp.failures import REFUSALS as REFUSALS
from taskgate.mcp.failures import Executed as Executed

# What the end of an exchange with a server proves about the call: was it executed, and may it be sent again?
#
# One pure function, `judge`, for plain calls, tasks and each round of a call that is made in several. The transports
# say what they saw (`Evidence`); who sends the call acts on the verdict. Sending again is allowed only where non-
# execution is proven, and then only after the cause was cured, or where the class of the tool allows a repeat.


class Moment(StrEnum):
    """How far the exchange had come when it ended."""

    NOT_SENT = "not_sent"
    """Name resolution, connecting, TLS or the handshake failed, or the server cannot have had the whole request."""
    SENT = "sent"
    """The last byte had left, and the connection, the stream or the child ended before any answer."""
    ANSWERED = "answered"
    """A complete reply came."""
    BROKEN_OFF = "broken_off"
    """A reply had begun and did not end, or could not be read."""
    TIMED_OUT = "timed_out"
    """The call had all its time."""


class Body(StrEnum):
    """What came back, as far as it is about this call."""

    ANSWER = "answer"
    """A JSON-RPC result or error that carries the id of our request."""
    TOO_LARGE = "too_large"
    """An answer that is longer than what is kept."""
    OTHER = "other"
    """Nothing, or something that does not carry our id."""


class Cure(StrEnum):
    """What must have happened before the same message may be sent again."""

    RECONNECT = "reconnect"
    """A pause and a new connection; as often as time allows, because nothing was sent."""
    SESSION = "session"
    """A new session, once."""
    CREDENTIALS = "credentials"
    """Other credentials, once."""
    WAIT = "wait"
    """The time that the server asked for has passed, once."""
    ASK = "ask"
    """Nothing is proven yet: a ping on the same session tells whether the session is lost."""
    REPEAT = "repeat"
    """Nothing is proven, but the tool is known to be safe to repeat: within the limit on attempts."""


class Evidence(msgspec.Struct, frozen=True):
    """What a transport saw. `status` is None where there is no HTTP or no reply; `in_session` says that the request named a
    session; `ping_refused` that a ping on that session, sent afterwards, got the same refusal.
    """

    moment: Moment
    status: int | None = None
    body: Body = Body.OTHER
    in_session: bool = False
    ping_refused: bool | None = None
    retry_after_s: float | None = None


class FailureVerdict(msgspec.Struct, frozen=True):
    """`executed` is about the whole call; `cure` about the message that was sent last: None means never again."""

    executed: Executed
    cure: Cure | None = None
    answered: bool = False


_CURES: Final = {401: Cure.CREDENTIALS, 429: Cure.WAIT}


def judge(evidence: Evidence, *, round_number: int = 1, tool_class: ToolClass = ToolClass.ONCE) -> FailureVerdict:
    """The verdict for the message that was sent in this round (1 is the first) of a call of this class."""
    verdict = _judge_message(evidence, tool_class)
    if round_number > 1 and verdict.executed is Executed.NO:
        # An earlier round has run, so the call has been executed at least in part.
        return FailureVerdict(Executed.MAYBE, verdict.cure)
    return verdict


def _judge_message(evidence: Evidence, tool_class: ToolClass) -> FailureVerdict:
    if evidence.body is Body.ANSWER:
        return FailureVerdict(Executed.YES, answered=True)
    if evidence.status in REFUSALS:
        return FailureVerdict(Executed.NO, _cure_of(evidence))
    if evidence.moment is Moment.NOT_SENT:
        return FailureVerdict(Executed.NO, Cure.RECONNECT)
    if evidence.status == 400 and evidence.in_session:
        return _judge_bad_request(evidence, tool_class)
    if evidence.body is Body.TOO_LARGE and (evidence.status is None or 200 <= evidence.status < 300):
        return FailureVerdict(Executed.YES)
    return _unproven(evidence, tool_class)


def _cure_of(evidence: Evidence) -> Cure | None:
    if evidence.status == 404:
        return Cure.SESSION if evidence.in_session else None
    return _CURES.get(evidence.status or 0)


def _judge_bad_request(evidence: Evidence, tool_class: ToolClass) -> FailureVerdict:
    """Many servers answer 400 to a session that they do not know; others to a call that they did execute."""
    if evidence.ping_refused is None:
        return FailureVerdict(Executed.MAYBE, Cure.ASK)
    if evidence.ping_refused:
        return FailureVerdict(Executed.NO, Cure.SESSION)
    return _unproven(evidence, tool_class)


def _unproven(evidence: Evidence, tool_class: ToolClass) -> FailureVerdict:
    if evidence.moment is Moment.TIMED_OUT or not tool_class.may_repeat:
        return FailureVerdict(Executed.MAYBE)
    return FailureVerdict(Executed.MAYBE, Cure.REPEAT)
