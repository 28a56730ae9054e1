"""Introspection reports tokens of every kind as active; only access tokens open the gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.identity.issuer import an_issuer
from tests.virtual_time import Gateway, Upstream, virtual_time


@pytest.mark.parametrize(
    ("members", "status"),
    [
        ({"token_type": "Bearer", "typ": "Bearer"}, 200),
        ({"token_type": "refresh_token"}, 401),
        ({"typ": "Refresh"}, 401),
        ({"token_use": "refresh_token"}, 401),
        ({"typ": "Logout", "events": {"http://schemas.openid.net/event/backchannel-logout": {}}}, 401),
        ({"token_type": "DPoP"}, 401),
        ({"cnf": {"jkt": "x" * 43}}, 401),
        ({"cnf": {"x5t#S256": "x" * 43}}, 401),
    ],
)
@virtual_time
async def test_introspected_refresh_and_logout_tokens_are_refused(members: dict[str, Any], status: int) -> None:
    async with an_issuer() as issuer:
        reply = json.dumps({**issuer.claims(), "active": True, **members}).encode()
        issuer.pages["/introspect"] = lambda _: (200, reply)
        asked = {
            "url": f"{issuer.url}/introspect",
            "issuer": issuer.url,
            "client_id": "gate",
            "client_secret": "s" * 32,
        }
        auth = {"introspection": {**asked, "audiences": ["gate"]}}
        async with Gateway({"auth": auth}, {"s": Upstream("2025")}) as gate:
            headers = {"authorization": "Bearer opaque"}
            assert (await gate.http("GET", "/api/v1/tasks", headers=headers).done()).status == status
