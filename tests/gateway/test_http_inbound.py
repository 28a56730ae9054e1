"""The HTTP transport: sessions, streams, headers, and invalid input of every kind, which is refused without effect on others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from tests.harness.gateway import Gateway
from tests.harness.raw_client import META, RawClient

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.virtual_time]

OPENING = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


def opening(version: str = "2025-11-25") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {**OPENING, "protocolVersion": version}}


@pytest.mark.parametrize(
    ("asked", "agreed"), [("2025-11-25", "2025-11-25"), ("2025-03-26", "2025-03-26"), ("2031-01-01", "2025-11-25")]
)
async def test_a_handshake_negotiates_a_revision(gateway: Gateway, asked: str, agreed: str) -> None:
    async with RawClient(gateway.url, version=asked) as caller:
        answer = await caller.post(opening(asked))
    assert answer.result["protocolVersion"] == agreed
    assert answer.headers["mcp-session-id"]
    assert answer.result["serverInfo"]["name"] == "taskgate"


async def test_both_addresses_serve_the_default_scope(gateway: Gateway) -> None:
    async with RawClient(f"{gateway.base}/mcp/v1") as caller:
        assert (await caller.call("old__mirror", {"value": 1})).result["vendor/extra"] == 1


async def test_a_session_ends_with_delete_and_is_then_unknown(gateway: Gateway) -> None:
    async with RawClient(gateway.url) as caller:
        assert (await caller.http.delete(gateway.url, headers=caller.headers)).status_code == 200
        gone = await caller.request("tools/list")
    assert gone.status == 404


async def test_without_a_session_nothing_but_a_handshake_is_answered(gateway: Gateway) -> None:
    async with RawClient(gateway.url, stateless=True) as caller:
        answer = await caller.post({"jsonrpc": "2.0", "id": 5, "method": "tools/list"})
    assert answer.status == 400
    assert answer.reply["id"] == 5
    assert answer.error["data"]["error_type"] == "not_initialized"


async def test_ping_is_answered_locally_in_2025_and_unknown_in_2026(gateway: Gateway) -> None:
    async with RawClient(gateway.url) as stateful, RawClient(gateway.url, stateless=True) as stateless:
        assert (await stateful.request("ping")).result == {}
        gone = await stateless.request("ping")
    assert (gone.status, gone.error["code"]) == (404, -32601)


async def test_an_unknown_method_is_an_error_in_both_generations(gateway: Gateway) -> None:
    """Bad input: unknown methods, with the method in the message; a stateless caller gets HTTP 404."""
    async with RawClient(gateway.url) as stateful, RawClient(gateway.url, stateless=True) as stateless:
        for caller, status in ((stateful, 200), (stateless, 404)):
            for method in ("no/such", "tools/explode", "Tools/List"):
                answer = await caller.request(method)
                assert (answer.status, answer.error["code"]) == (status, -32601)
                assert method in answer.error["message"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, -32700),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', 400, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}', 400, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\\ud800"}}', 400, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":' + b"[" * 140 + b"]" * 140 + b"}}", 400, -32700),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', 400, -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', 400, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"no/such"}', 200, -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}', 200, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"old__mirror","arguments":[]}}', 200, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nowhere"}}', 200, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"?"}}', 200, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"loud"}}', 200, -32602),
    ],
)
async def test_invalid_messages_get_an_error_and_do_not_affect_others(
    gateway: Gateway, body: bytes, status: int, code: int
) -> None:
    """Bad input: malformed JSON, duplicate keys, NaN, lone surrogates, depth, unknown methods."""
    async with RawClient(gateway.url) as caller:
        answer = await caller.post_bytes(body)
        assert (answer.status, answer.error["code"]) == (status, code)
        assert answer.error["data"]["executed"] == "no"
        assert answer.error["data"]["correlation_id"]
        assert (await caller.call("old__mirror", {"value": 7})).result["vendor/extra"] == 7


async def test_a_body_over_the_limit_is_refused_before_it_is_read(gateway: Gateway) -> None:
    """Bad input: bodies over the limit."""
    async with RawClient(gateway.url) as caller:
        answer = await caller.post_bytes(b'{"x":"' + b"y" * (4 * 1024 * 1024) + b'"}')
    assert answer.status == 413
    assert answer.error["data"]["error_type"] == "request_too_large"


async def test_batches_exist_in_one_revision_only(gateway: Gateway) -> None:
    """Bad input: batches outside 2025-03-26."""
    batch = b'[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":2,"method":"ping"}]'
    async with RawClient(gateway.url, version="2025-03-26") as caller:
        sent = {"content-type": "application/json", **caller.headers}
        reply = await caller.http.post(gateway.url, content=batch, headers=sent)
        stateless = sent | {"mcp-protocol-version": "2026-07-28"}
        stateless.pop("mcp-session-id")
        refused = (await caller.http.post(gateway.url, content=batch, headers=stateless)).json()["error"]
    assert sorted(answer["id"] for answer in reply.json()) == [1, 2]
    assert refused["data"]["executed"] == "no"
    assert (refused["data"]["error_type"], "supported" in refused["data"]) == ("invalid_request", False)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
        ({"content-type": "text/plain"}, 415),
        ({"mcp-protocol-version": "1900-01-01"}, 400),
        ({"authorization": "Basic abc"}, 200),
    ],
)
async def test_headers_are_checked(gateway: Gateway, headers: dict[str, str], status: int) -> None:
    """Bad input: wrong headers."""
    async with RawClient(gateway.url) as caller:
        answer = await caller.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers)
    assert answer.status == status


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"mcp-method": "tools/list"}, -32020),
        ({"mcp-name": "other"}, -32020),
        ({"mcp-protocol-version": "2025-11-25"}, -32020),
    ],
)
async def test_stateless_headers_must_repeat_the_body(gateway: Gateway, change: dict[str, str], code: int) -> None:
    async with RawClient(gateway.url, stateless=True) as caller:
        params = {"name": "new__mirror", "arguments": {"value": 1}}
        params["_meta"] = {f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {}}
        good = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "new__mirror"}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = await caller.post(message, {**good, **change})
    assert (answer.status, answer.error["code"]) == (400, code)


async def test_a_stateless_caller_uses_post_only(gateway: Gateway) -> None:
    async with httpx2.AsyncClient() as http:
        reply = await http.get(gateway.url, headers={"mcp-protocol-version": "2026-07-28"})
    assert reply.status_code == 405


async def test_the_same_id_may_not_be_used_twice_at_once(gateway: Gateway) -> None:
    async with RawClient(gateway.url) as caller:
        slow = {
            "jsonrpc": "2.0",
            "id": 77,
            "method": "tools/call",
            "params": {"name": "old__sleep", "arguments": {"value": 0.5}},
        }
        both = await asyncio.gather(caller.post(slow), caller.post(slow))
    kinds = sorted("result" if "result" in answer.reply else answer.error["data"]["error_type"] for answer in both)
    assert kinds == ["invalid_request", "result"]


async def test_a_cancelled_call_gets_no_answer(gateway: Gateway) -> None:
    async with RawClient(gateway.url) as caller:
        slow = {
            "jsonrpc": "2.0",
            "id": 5,
            "method": "tools/call",
            "params": {"name": "old__sleep", "arguments": {"value": 30}},
        }
        calling = asyncio.create_task(caller.post(slow))
        while not (await caller.post({"jsonrpc": "2.0", "id": 5, "method": "ping"})).reply.get("error"):
            await asyncio.sleep(0.01)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
        assert (await caller.post(cancel)).status == 202
        answer = await asyncio.wait_for(calling, 5)
    # Clients read a request's answer as JSON or as a stream; one without a response is a stream without messages.
    assert (answer.status, answer.messages) == (200, [])
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_a_broken_stream_can_be_resumed(gateway: Gateway) -> None:
    async with RawClient(gateway.url) as caller:
        message = {
            "jsonrpc": "2.0",
            "id": 9,
            "method": "tools/call",
            "params": {"name": "old__notify", "arguments": {"value": 3}},
        }
        sent = {"content-type": "application/json", "accept": "application/json, text/event-stream", **caller.headers}
        reply = await caller.http.post(gateway.url, content=json.dumps(message).encode(), headers=sent)
        ids = [line[3:].strip() for line in reply.text.splitlines() if line.startswith("id:")]
        again = await caller.http.get(
            gateway.url, headers={**caller.headers, "accept": "text/event-stream", "last-event-id": ids[1]}
        )
    assert '"id":9' in again.text
    assert "notifications/vendor" not in again.text, "what was seen is not sent again"


async def test_an_unknown_event_id_is_refused(gateway: Gateway) -> None:
    async with RawClient(gateway.url) as caller:
        headers = {**caller.headers, "accept": "text/event-stream", "last-event-id": "no.1"}
        assert (await caller.http.get(gateway.url, headers=headers)).status_code == 400
        assert (
            await caller.http.get(gateway.url, headers={**caller.headers, "accept": "text/html"})
        ).status_code == 406


@pytest.mark.parametrize("path", ["/health", "/healthz", "/ready", "/readyz", "/metrics"])
async def test_the_usual_addresses_answer(gateway: Gateway, path: str) -> None:
    async with httpx2.AsyncClient() as http:
        assert (await http.get(gateway.base + path)).status_code == 200


async def test_an_unknown_scope_is_not_found(gateway: Gateway) -> None:
    async with RawClient(f"{gateway.base}/mcp/nowhere", stateless=True) as caller:
        assert (await caller.post(opening())).status == 404
