"""What a failed exchange over HTTP, or an answer without our id, proves about the call, and how it is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taskgate.core.errors import Executed
from taskgate.core.evidence import Evidence, Moment
from taskgate.core.wire import Message
from taskgate.mcp.failures import HttpFailure, Stage
from taskgate.mcp.http.reader import HttpReply
from taskgate.ports.upstream import CallFailed
from taskgate.ports.upstream_credentials import HeaderPairs
from taskgate.upstreams.flight import HttpRefusal, broke_protocol, looks_like_answer, timed_out, too_large, unreachable

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
        moment = Moment.NOT_SENT if failure.executed is Executed.NO else Moment.BROKEN_OFF
        return CallFailed("upstream_unreachable", server, why, Evidence(moment, status, in_session=in_session))
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
    """Whole seconds (RFC 9110, 10.2.3); a date is not worth a clock that two machines would have to agree on."""
    asked = headers.get(b"retry-after", b"").strip()
    return float(asked) if asked.isdigit() and len(asked) < 9 else None
