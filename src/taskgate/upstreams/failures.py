"""Failures of requests to a server, and what each proves about the call."""

from __future__ import annotations

from typing import Final

from taskgate.core import wire
from taskgate.core.errors import Executed, TaskgateError
from taskgate.core.evidence import Body, Evidence, Moment
from taskgate.core.wire import MalformedJson
from taskgate.ports.call_failure import CallFailed
from taskgate.ports.upstream_credentials import HeaderPairs
from taskgate.upstreams.secret_filter import SecretFilter


class HttpRefusal(CallFailed):
    """The server returned an HTTP status without a JSON-RPC response to the request."""

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
        # A reply before the whole request was sent proves that it was not executed.
        moment = Moment.ANSWERED if request_sent else Moment.NOT_SENT
        # insufficient_scope is handled like a rejected token: the challenge states what is needed.
        effective_status = 401 if status == 403 and "insufficient_scope" in challenge else status
        evidence = Evidence(moment, effective_status, in_session=in_session, retry_after_s=retry_after_s)
        super().__init__("upstream_unreachable", server, _text(status, in_session, error), evidence)
        self.status = status
        self.error = error
        """A JSON-RPC error object without the request's id."""
        self.proof = proof
        """The credentials that the rejected message carried."""
        self.challenge = challenge
        """The `WWW-Authenticate` header of the response."""


_ERROR_TEXT_CHARS: Final = 200


def _text(status: int, in_session: bool, error: bytes | None) -> str:
    if status == 404 and in_session:
        return "no longer has the session"
    if error is None:
        return f"rejected the request with HTTP {status}"
    reported = wire.parse_strictly(error).get("message")
    text = reported[:_ERROR_TEXT_CHARS] if type(reported) is str else ""
    return f"rejected the request with HTTP {status}: {text}".rstrip(": .")


class SessionGone(HttpRefusal):
    """The server no longer has the session. Nothing was executed, and a new handshake may help."""

    def __init__(self, server: str) -> None:
        super().__init__(server, 404, in_session=True)


class HandshakeRefused(CallFailed):
    """The server rejected the handshake. It may support the other generation."""

    def __init__(self, server: str, why: str) -> None:
        super().__init__("upstream_unreachable", server, why, Evidence(Moment.NOT_SENT))


_PEEK: Final = 400


def looks_like_answer(begin: bytes) -> bool:
    """Return whether a message is a response, judging by its first bytes."""
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
    """Return the failure for a response to the request that is not acceptable JSON."""
    why = problem.reason if isinstance(problem, MalformedJson) else problem.message
    return broke_protocol(server, f"sent an invalid response ({secrets.text(why)})")


def too_large(server: str, limit: int, status: int | None = None) -> CallFailed:
    evidence = Evidence(Moment.BROKEN_OFF, status, Body.TOO_LARGE)
    return CallFailed(
        "result_too_large",
        server,
        f"returned more than {limit} bytes (limits.result_bytes)",
        evidence,
        advice=" Request less at a time.",
    )
