"""Every response of the console and the API carries the headers that keep browsers from misusing it."""

from __future__ import annotations

import re

from tests.console.test_console_pages import operator
from tests.virtual_time import Gateway, Reply, Upstream, virtual_time

from taskgate.access.routes import RouteKind
from taskgate.core.identity.access import Access

HEADERS = {
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def assert_safe(reply: Reply, where: object) -> None:
    assert {name: reply.headers.get(name) for name in HEADERS} == HEADERS, where
    assert reply.headers["referrer-policy"] in ("same-origin", "no-referrer"), where
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy, where
    assert "frame-ancestors 'none'" in policy, where
    assert "base-uri 'none'" in policy, where


@virtual_time
async def test_every_route_of_the_console_and_the_api_forbids_framing() -> None:
    async with Gateway({}, {"notes": Upstream("2025")}) as gate:
        boss = await operator(gate)
        bearer = {"authorization": f"Bearer {gate.operator_token}"}
        for route in gate.life.dashboard.routes:
            path = re.sub(r"{\w+}", "notes", route.path)
            if route.method == "GET":
                for headers in ({}, {"cookie": boss.cookie}, bearer if route.kind is RouteKind.API else {}):
                    asked = gate.http("GET", path, headers=headers)
                    reply = await asked.head()
                    if reply.headers.get("content-type") == "text/event-stream":
                        await asked.disconnect()
                    else:
                        await asked.done()
                    assert_safe(reply, (path, headers, reply.status))
            elif route.access is not Access.PUBLIC:
                assert_safe(await gate.http(route.method, path, {}).done(), path)
        for path in ("/static/style.css", "/static/none", "/none", "/api/none"):
            assert_safe(await gate.http("GET", path).done(), path)
        assert_safe(await gate.http("PUT", "/overview", {}).done(), "another method")
        assert_safe(await gate.http("POST", "/login", b"x" * 300_000).done(), "a body that is too large")
