"""A certificate proves one caller: names of several callers, and several headers of a proxy, prove none."""

from __future__ import annotations

from typing import Any

import pytest
from tests.virtual_time import Gateway, virtual_time

from taskgate.access.authorize import AccessRefused
from taskgate.access.proof import Headers, HttpProof
from taskgate.core.identity.access import Access, AccessRefusal

PROXY = "192.0.2.1"
CONFIG: dict[str, Any] = {
    "auth": {
        "certificates": [
            {"name": "dns:agent.example", "id": "agent"},
            {"name": "cn:agent", "id": "agent"},
            {"name": "dns:bot.example", "id": "bot"},
            {"name": "cn:bot", "id": "bot"},
        ]
    },
    "listen": {"trusted_proxies": [PROXY], "client_certificate_header": "X-DN"},
}


class TlsConnection:
    """The facts that the event loop offers about a connection."""

    def __init__(self, peer: str, *names: str, common_name: str = "") -> None:
        subject = ((("commonName", common_name),),) if common_name else ()
        certificate = {"subjectAltName": tuple(("DNS", name) for name in names), "subject": subject}
        self._known = {"peername": (peer, 5), "sockname": ("192.0.2.9", 7467), "peercert": certificate}

    def get_extra_info(self, name: str) -> Any:
        return self._known.get(name)


async def caller_of(connection: TlsConnection, headers: Headers = ()) -> str:
    """The principal of a call, or why it is refused."""
    async with Gateway(CONFIG, {}) as gate:
        authorizer = gate.life.app.authorizer
        try:
            proof = HttpProof(authorizer.arrivals.of(connection), None, headers)
            return authorizer.admit(proof, Access.CALL, anonymous=True).caller.principal
        except AccessRefused as refused:
            return refused.reason


@pytest.mark.parametrize(
    ("names", "common_name", "caller"),
    [
        (("agent.example",), "", "agent"),
        (("agent.example", "other.example"), "agent", "agent"),
        (("agent.example", "bot.example"), "", AccessRefusal.NO_CREDENTIAL),
        (("bot.example", "agent.example"), "", AccessRefusal.NO_CREDENTIAL),
        (("agent.example",), "bot", AccessRefusal.NO_CREDENTIAL),
        (("other.example",), "", AccessRefusal.NO_CREDENTIAL),
    ],
)
@virtual_time
async def test_a_certificate_with_names_of_two_callers_proves_none(
    names: tuple[str, ...], common_name: str, caller: str
) -> None:
    assert await caller_of(TlsConnection("198.51.100.1", *names, common_name=common_name)) == caller


@pytest.mark.parametrize(
    ("values", "caller"),
    [
        ((b"CN=bot",), "bot"),
        ((b"CN=bot", b"CN=agent"), AccessRefusal.NO_CREDENTIAL),
        ((b"CN=bot", b"CN=bot"), AccessRefusal.NO_CREDENTIAL),
        ((b"CN=bot", b""), AccessRefusal.NO_CREDENTIAL),
        ((), AccessRefusal.NO_CREDENTIAL),
    ],
)
@virtual_time
async def test_a_request_with_two_certificate_headers_proves_no_caller(values: tuple[bytes, ...], caller: str) -> None:
    """A client may have sent one of them, which the proxy has not removed."""
    assert await caller_of(TlsConnection(PROXY), [(b"x-dn", value) for value in values]) == caller
