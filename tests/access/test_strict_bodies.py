"""Bodies of every route are read strictly and within limits: no body causes an internal error."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest
from tests.console.test_console_pages import operator
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.access.routes import RouteKind
from taskgate.core.identity.access import Access

DEEP = 2_000
BODIES = {
    "nested objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "nested lists": b"[" * DEEP + b"]" * DEEP,
    "nested in a known key": b'{"config":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "nested deeper than a message may be": b'{"arguments":' + b'{"a":' * 65 + b"1" + b"}" * 66,
    "not closed": b"{" * DEEP,
    "a key twice": b'{"tool":"a","tool":"b"}',
    "not a number": b'{"a":NaN}',
    "half a surrogate": b'{"a":"\\ud800"}',
    "not UTF-8": b'{"a":"\xff"}',
    "a list": b"[]",
    "a huge number": b'{"a":' + b"9" * 100_000 + b"}",
    "many values": b'{"a":[' + b"1," * 120_000 + b"1]}",
}


def notes() -> Upstream:
    server = Upstream("2025")

    @server.tool("read", inputSchema={"type": "object", "properties": {"deep": {"type": "object"}}})
    async def read(_call: Call) -> str:
        return "a note"

    return server


@pytest.mark.parametrize("name", BODIES)
@virtual_time
async def test_no_body_of_an_api_request_is_an_internal_error(name: str) -> None:
    async with Gateway({}, {"notes": notes()}) as gate:
        headers = {"authorization": f"Bearer {gate.operator_token}", "content-type": "application/json"}
        routes = [
            route
            for route in gate.life.site.routes
            if route.method == "POST" and route.kind in (RouteKind.API, RouteKind.WEBHOOK)
        ]
        assert len(routes) > 10
        for route in routes:
            path = re.sub(r"{\w+}", "notes", route.path)
            reply = await gate.http("POST", path, BODIES[name], headers).done()
            # Routes without a body do not read it.
            assert reply.status in (200, 400, 404), (route.path, reply.status, reply.body[:200])
            if route.path in ("/api/v1/tools/call", "/api/v1/scopes", "/api/v1/tokens/revoke"):
                assert reply.status == 400, (route.path, reply.body[:200])
        assert not [line for line in gate.log if line.level == "error"]


@virtual_time
async def test_json_in_console_forms_is_parsed_by_the_strict_parser() -> None:
    async with Gateway({}, {"notes": notes()}) as gate:
        boss = await operator(gate)
        guard = gate.life.dashboard.login.form_token(boss.cookie.partition("=")[2])
        page = await boss.text("/try?tool=notes__read")
        fields = re.findall(r'<textarea[^>]* name="([^"]+)"', page)
        assert fields
        for field in fields:
            for body in (BODIES["nested objects"], BODIES["a key twice"], b"{"):
                form = {"tool": "notes__read", "scope": "default", field: body.decode()}
                assert (await boss.post("/try", form, guard)).status == 400, field
        kind = {"content-type": "application/x-www-form-urlencoded", "cookie": boss.cookie}
        for route in gate.life.site.routes:
            if route.kind is RouteKind.FORM and route.access is not Access.PUBLIC and route.path != "/logout":
                path = re.sub(r"{\w+}", "notes", route.path)
                sent = urlencode({"form_token": guard}).encode() + b"&" + b"%ff=%00&" * 100 + b"a=%"
                reply = await gate.http("POST", path, sent, kind).done()
                assert reply.status < 500, (route.path, reply.status)
