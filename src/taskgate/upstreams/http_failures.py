"""What a failed HTTP exchange, or a reply without our request id, proves about the call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taskgate import clock
from taskgate.core.errors import Executed
from taskgate.core.evidence import Evidence, Moment
from taskgate.core.wire import Message
from taskgate.mcp.failures import HttpFailure, Stage
from taskgate.mcp.http.reader import HttpReply
from taskgate.ports.call_failure import CallFailed
from taskgate.ports.upstream_credentials import HeaderPairs
from taskgate.upstreams.failures import (
    HttpRefusal,
    broke_protocol,
    looks_like_answer,
    timed_out,
    too_large,
    unreachable,
)

MIN_RETRY_S: Final = 1.0


_REASONS: Final = {
    Stage.RESOLVE: "has a host name that cannot be resolved",
    Stage.CONNECT: "does not accept connections",
    Stage.TLS: "failed the TLS handshake",
    Stage.POOL_FULL: "has too many calls waiting",
}


def explain(
    server: str, failure: HttpFailure, timeout_s: float | None, *, in_session: bool, max_bytes: int
) -> CallFailed:
    status = failure.status
    if failure.executed is Executed.NO or (status is not None and not 200 <= status < 300):
        why = _REASONS.get(failure.stage, "broke the connection" if status is None else f"returned HTTP {status}")
        why += f" ({failure.reason})" if failure.reason else ""
        moment = Moment.NOT_SENT if failure.executed is Executed.NO else Moment.BROKEN_OFF
        evidence = Evidence(moment, status, in_session=in_session)
        return CallFailed("upstream_unreachable", server, why, evidence, detail=failure.message)
    if failure.stage is Stage.DEADLINE:
        return timed_out(server, timeout_s or 0)
    if failure.stage is Stage.TOO_LARGE and (not failure.partial or looks_like_answer(failure.partial)):
        return too_large(server, max_bytes, status)
    return unreachable(server, _REASONS.get(failure.stage, "broke the connection"), Executed.MAYBE)


def refusal(
    server: str, reply: HttpReply, message: Message | None, *, in_session: bool, proof: HeaderPairs = ()
) -> CallFailed:
    """Return the failure for a reply without our request id. `proof` are the credentials that the request carried."""
    if 200 <= reply.status < 300:
        return broke_protocol(server, "did not return a JSON-RPC response to the request")
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
    """Parse Retry-After: seconds or a date (RFC 9110, 10.2.3). None if it is neither."""
    header = headers.get(b"retry-after", b"").strip()[:64]
    if header.isdigit():
        return float(header)
    from email.utils import parsedate_to_datetime

    try:
        until = parsedate_to_datetime(header.decode("ascii")).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(until - clock.wall(), MIN_RETRY_S)
