"""What one peer can take from all others: headers, connections, sessions. Bytes by hand, on the gateway in the process."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from typing import Any

import pytest
from tests.gateway.bare import BareReply, initialize, parsed
from tests.governance.approval_setup import person
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

HOST = b"Host: 127.0.0.1\r\n"
GOOD = b"GET /health HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"


async def _sent(gate: Gateway, *parts: bytes) -> BareReply | None:
    """What is received until the gateway closes the connection; None if it sends nothing."""
    reader, writer = await gate.connect()
    raw = b""
    with contextlib.suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        raw = await reader.read()
    writer.close()
    return parsed(raw) if raw else None


def _headers(count: int, size: int = 1) -> bytes:
    return b"".join(b"X-%d: %b\r\n" % (number, b"a" * size) for number in range(count))


@virtual_time
@pytest.mark.parametrize("way", ["POST /mcp", "GET /mcp", "GET /approvals", "POST /nowhere"])
async def test_too_many_or_too_large_headers_are_answered_431(way: str) -> None:
    line = way.encode() + b" HTTP/1.1\r\n" + HOST
    async with Gateway({"limits": {"header_count": 20, "header_bytes": 4096}}) as gate:
        for head in (
            line + _headers(30) + b"\r\n",
            line + _headers(2, 3000) + b"\r\n",
            line + b"X-Endless: " + b"a" * 9000 + b"\r\n\r\n",
            way.encode() + b"?" + b"a" * 5000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        ):
            reply = await _sent(gate, head)
            assert reply is not None
            assert reply.status == 431, head[:40]
        fine = await _sent(gate, GOOD)
        assert fine is not None
        assert fine.status == 200


@virtual_time
@pytest.mark.parametrize(
    "begin", [b"X-Endless: ", b"X-Endless", b"", b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Trailer: "]
)
async def test_a_header_that_never_ends_is_cut_off_while_it_comes(begin: bytes) -> None:
    """The parser keeps what is unfinished: 13 MiB of it may not become 13 MiB of ours."""
    async with Gateway({"limits": {"header_bytes": 16384}}) as gate:
        first = b"POST /mcp HTTP/1.1\r\n" + HOST + begin if begin else b"POST /mcp?"
        tracemalloc.start()
        try:
            reply = await _sent(gate, first, *[b"a" * 65536] * 200)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert reply is None or reply.status == 431
        assert peak < 4 << 20


@virtual_time
async def test_a_body_in_tiny_chunks_does_not_count_as_headers() -> None:
    async with Gateway({"limits": {"header_bytes": 2048}}, {"a": Upstream("2025")}) as gate:
        body = initialize()
        head = b"POST /mcp HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nConnection: close\r\n"
        head += b"Accept: application/json, text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunks = [b"1;%b\r\n%c\r\n" % (b"x" * 40, byte) for byte in body]
        reply = await _sent(gate, head, *chunks, b"0\r\n\r\n")
        assert reply is not None
        assert reply.status == 200


@virtual_time
@pytest.mark.parametrize("way", [b"POST /mcp", b"GET /health", b"GET /approvals"])
async def test_two_hosts_are_refused(way: bytes) -> None:
    async with Gateway() as gate:
        for second in (b"Host: 127.0.0.1\r\n", b"host: evil.example\r\n"):
            reply = await _sent(gate, way + b" HTTP/1.1\r\n" + HOST + second + b"\r\n")
            assert reply is not None
            assert reply.status == 400
        reply = await _sent(gate, b"GET /health HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        assert reply is not None
        assert reply.status == 200


@virtual_time
@pytest.mark.parametrize("name", [b"Authorization", b"ORIGIN", b"Mcp-Session-Id", b"mcp-protocol-version"])
async def test_repeated_identity_headers_are_refused(name: bytes) -> None:
    async with Gateway() as gate:
        for way in (b"POST /mcp", b"GET /mcp", b"GET /approvals", b"GET /api/v1/tasks"):
            twice = name + b": http://evil.example\r\n" + name.lower() + b": http://localhost\r\n"
            reply = await _sent(gate, way + b" HTTP/1.1\r\n" + HOST + twice + b"\r\n")
            assert reply is not None
            assert (reply.status, b"one" in reply.body) == (400, True)


@virtual_time
async def test_connections_are_limited_and_closed_ones_free_a_slot() -> None:
    async with Gateway({"limits": {"connections": 10, "connections_per_address": 4}}) as gate:
        held = [await gate.connect() for _ in range(4)]
        for _, writer in held:
            writer.write(b"GET /health HTTP/1.1\r\n")
        refused = await _sent(gate)
        assert refused is not None
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        held[0][1].close()
        await asyncio.sleep(0.1)
        served = await _sent(gate, GOOD)
        assert served is not None
        assert served.status == 200


@virtual_time
async def test_a_trusted_proxy_may_use_all_connections() -> None:
    limits = {"connections": 6, "connections_per_address": 2}
    async with Gateway({"limits": limits, "listen": {"trusted_proxies": ["127.0.0.1"]}}) as gate:
        held = [await gate.connect() for _ in range(5)]
        served = await _sent(gate, GOOD)
        assert served is not None
        assert served.status == 200
        held.append(await gate.connect())
        refused = await _sent(gate)
        assert refused is not None
        assert refused.status == 503


async def _open(gate: Gateway, **headers: str) -> Any:
    """The reply to one `initialize`: its session, or why there is none."""
    sent = {"accept": "application/json, text/event-stream", **{k.replace("_", "-"): v for k, v in headers.items()}}
    reply = await gate.http("POST", "/mcp", initialize(), sent).done()
    return reply.headers.get("mcp-session-id") or reply.error["data"]["error_type"]


@virtual_time
async def test_sessions_of_one_address_are_limited() -> None:
    settings = {
        "listen": {"trusted_proxies": ["127.0.0.0/8"]},
        "limits": {"sessions": 8, "sessions_per_caller": 3, "anonymous_sessions": 5},
        "tokens": [person("agent")],
        "auth": {"anonymous": "default"},
    }
    async with Gateway(settings, {"a": Upstream("2025")}) as gate:
        for _ in range(3):
            assert len(await _open(gate, x_forwarded_for="203.0.113.9, 127.0.0.5")) > 20
        # Entries to the left of the address that the proxy added, and other spellings of it, make no difference.
        for message in ("203.0.113.9", "198.51.100.1, 203.0.113.9", "::ffff:203.0.113.9", "203.0.113.9:4711"):
            assert await _open(gate, x_forwarded_for=message) == "overloaded"
        assert len(await _open(gate, x_forwarded_for="2001:db8::1")) > 20
        assert len(await _open(gate, x_forwarded_for="2001:db8::2")) > 20
        # Now all callers without a token together have theirs, but a token has its own.
        assert await _open(gate, x_forwarded_for="192.0.2.77") == "overloaded"
        for _ in range(3):
            assert len(await _open(gate, authorization="Bearer agent-token", x_forwarded_for="203.0.113.9")) > 20
        assert await _open(gate, authorization="Bearer agent-token") == "overloaded"


@virtual_time
async def test_unused_sessions_are_evicted_and_used_ones_are_not() -> None:
    async with Gateway({"limits": {"sessions_per_caller": 4}}, {"a": Upstream("2025")}) as gate:
        used = await gate.caller("2025")
        flood = [await _open(gate) for _ in range(3)]
        assert await _open(gate) == "overloaded"
        await gate.advance(11)
        fresh = [await _open(gate) for _ in range(3)]
        assert "overloaded" not in fresh
        assert not set(fresh) & set(flood)
        assert await _open(gate) == "overloaded"
        assert (await used.request("ping")).result == {}


@virtual_time
async def test_forwarded_headers_of_an_untrusted_peer_are_ignored() -> None:
    async with Gateway(
        {"limits": {"sessions_per_caller": 2}, "allowed_hosts": ["127.0.0.1"]}, {"a": Upstream("2025")}
    ) as gate:
        text = [await _open(gate, x_forwarded_for=f"192.0.2.{number}") for number in range(4)]
        assert text[2:] == ["overloaded", "overloaded"]


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_open_approvals_are_counted_by_the_real_address(generation: str) -> None:
    """A new session, or another name of the client, is the same caller."""
    notes = Upstream("2025")

    @notes.tool("delete")
    async def delete(_call: Call) -> str:
        return "gone"

    settings = {
        "listen": {"trusted_proxies": ["127.0.0.1"]},
        "allowed_hosts": ["127.0.0.1"],
        "governance": {"rules": [{"match": "delete", "action": "approve"}]},
        "limits": {"pending_approvals_per_caller": 2, "anonymous_pending_approvals": 3},
    }
    async with Gateway(settings, {"a": notes}) as gate:

        async def asks(number: int, address: str) -> str:
            headers = {"x-forwarded-for": address}
            caller = await gate.caller(generation, client=f"client-{number}", headers=headers)
            call = caller.begin_call("a__delete", {"n": number})
            await gate.advance(1)
            return call.reply.error["data"]["error_type"] if call.is_done else "held"

        assert [await asks(n, "192.0.2.1") for n in range(3)] == ["held", "held", "overloaded"]
        assert [await asks(n, "192.0.2.2") for n in range(3, 5)] == ["held", "overloaded"]
        assert len((await gate.operator("GET", "/api/approvals")).json()) == 3
