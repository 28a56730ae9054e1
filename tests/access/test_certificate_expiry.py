"""A connection may stay open for longer than the client's certificate is valid: later requests on it are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.virtual_time import Gateway, Upstream, virtual_time

from taskgate import clock
from taskgate.access.arrival import Arrival, Arrivals
from taskgate.access.authorize import AccessRefused, Authorizer
from taskgate.access.open_responses import Ended
from taskgate.access.proof import HttpProof
from taskgate.core.identity.access import Access, AccessRefusal
from taskgate.inbound.http.mcp_access import HttpRefused
from taskgate.inbound.http.post_head import PostHead

CONFIG: dict[str, Any] = {"auth": {"certificates": [{"name": "dns:agent.example", "id": "agent"}]}}
LASTS_S = 100


class TlsConnection:
    """The facts that the event loop offers about a connection whose certificate it has verified."""

    def __init__(self) -> None:
        ends = datetime.fromtimestamp(clock.wall() + LASTS_S, UTC).strftime("%b %d %H:%M:%S %Y GMT")
        certificate = {"subjectAltName": (("DNS", "agent.example"),), "notAfter": ends}
        self._known = {"peername": ("192.0.2.1", 5), "sockname": ("127.0.0.1", 7467), "peercert": certificate}

    def get_extra_info(self, name: str) -> Any:
        return self._known.get(name)


def refusal(authorizer: Authorizer, arrival: Arrival) -> AccessRefusal | None:
    try:
        authorizer.admit(HttpProof(arrival, None, ()), Access.CALL, anonymous=True)
    except AccessRefused as refused:
        return refused.reason
    return None


@virtual_time
async def test_requests_and_streams_end_with_the_certificate() -> None:
    async with Gateway(CONFIG, {"s": Upstream("2025")}) as gate:
        authorizer, access = gate.life.app.authorizer, gate.life.endpoint.access
        arrival = authorizer.arrivals.of(TlsConnection())
        head = PostHead(b"/mcp", [], {b"host": b"127.0.0.1"})
        assert access.admit(head, arrival).caller.principal == "agent"
        ended: list[Ended] = []
        authorized = authorizer.admit(HttpProof(arrival, None, ()), Access.CALL, anonymous=True)
        gate.life.app.responses.hold(authorized, ended.append)
        await gate.advance(LASTS_S - 5)
        assert (refusal(authorizer, arrival), ended) == (None, [])
        await gate.advance(7)
        assert refusal(authorizer, arrival) is AccessRefusal.EXPIRED
        assert [one.reason.value for one in ended] == ["credential_expired"]
        with pytest.raises(HttpRefused) as refused:
            access.admit(head, arrival)
        assert refused.value.status == 401


@virtual_time
async def test_certificate_that_a_proxy_verified_has_no_known_end() -> None:
    """The proxy's own certificate is not the caller's."""
    async with Gateway(CONFIG, {}):
        arrivals = Arrivals(["192.0.2.0/24"], "X-DN")
        arrival = arrivals.of(TlsConnection())
        assert arrivals.certificate_expiry(arrival) is None
        assert arrivals.certificate_names(arrival, [(b"x-dn", b"CN=bot")]) == ("cn:bot",)
        assert Arrivals([], "X-DN").certificate_expiry(Arrivals([], "X-DN").of(TlsConnection())) is not None
