"""How the HTTP transport handles complete, interrupted and refused replies.

The server is a script in this process, because the tests depend on exact bytes and timing, most of which no SDK would send.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.client.scripted import Request, Scripted, call_script, http, scripted, stateful

from taskgate.client import (
    CannotConnect,
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    HttpRefusal,
    InvalidReply,
    ReplyTooLarge,
    ServerError,
    Unauthorized,
    VersionUnsupported,
    connect,
)

pytestmark = pytest.mark.timeout(20)


def stated(request: Request, executed: Any) -> bytes:
    """A JSON-RPC error with this `data.executed`; without data if it is None."""
    error = {"code": -32000, "message": "no"} | ({} if executed is None else {"data": {"executed": executed}})
    return json.dumps({"jsonrpc": "2.0", "id": request.message["id"], "error": error}).encode()


FAILURES: list[tuple[str, Callable[[Request], bytes | None], type[ClientError], str]] = [
    ("closed without an answer", lambda r: None, ConnectionLost, "maybe"),
    ("half a body", lambda r: http(r.reply({}))[:-3] + b"", DeadlineExceeded, "maybe"),
    ("not HTTP", lambda r: b"SSH-2.0-hello\r\n\r\n", InvalidReply, "maybe"),
    ("not JSON", lambda r: http(b"{oops"), InvalidReply, "maybe"),
    ("HTML instead of JSON", lambda r: http(b"<html>", kind="text/html"), InvalidReply, "maybe"),
    ("a JSON string", lambda r: http(b'"hi"'), InvalidReply, "maybe"),
    ("an answer to another request", lambda r: http(b'{"jsonrpc":"2.0","id":77,"result":{}}'), InvalidReply, "maybe"),
    ("accepted without an answer", lambda r: http(b"", 202), InvalidReply, "maybe"),
    ("a stream without the answer", lambda r: http(b": hi\n\n", kind="text/event-stream"), ConnectionLost, "maybe"),
    ("rubbish in the stream", lambda r: http(b"data: {x\n\n", kind="text/event-stream"), InvalidReply, "maybe"),
    ("unauthorized", lambda r: http(b"no", 401), Unauthorized, "no"),
    ("forbidden with a JSON error", lambda r: http(b'{"jsonrpc":"2.0","id":null,"error":{}}', 403), Unauthorized, "no"),
    ("too many requests", lambda r: http(b"slow down", 429, retry_after="7"), HttpRefusal, "no"),
    ("an internal error", lambda r: http(b"oops", 500), HttpRefusal, "maybe"),
    ("a bad request", lambda r: http(b"oops", 400), HttpRefusal, "maybe"),
    ("an error page of a load balancer", lambda r: http(b"<html>", 503, kind="text/html"), HttpRefusal, "maybe"),
    ("overloaded, not executed", lambda r: http(stated(r, "no"), 503), HttpRefusal, "no"),
    ("too many requests after the call", lambda r: http(stated(r, "maybe"), 429), HttpRefusal, "maybe"),
    ("a JSON-RPC error that states no", lambda r: http(stated(r, "no")), ServerError, "no"),
    ("a JSON-RPC error that states maybe", lambda r: http(stated(r, "maybe")), ServerError, "maybe"),
    ("a JSON-RPC error that states yes", lambda r: http(stated(r, "yes")), ServerError, "yes"),
    ("a JSON-RPC error of another server", lambda r: http(stated(r, None)), ServerError, "maybe"),
    ("a JSON-RPC error with a wrong value", lambda r: http(stated(r, "never")), ServerError, "maybe"),
    ("a JSON-RPC error with an object as value", lambda r: http(stated(r, ["no"])), ServerError, "maybe"),
    ("too large", lambda r: http(b"x" * 5000), ReplyTooLarge, "maybe"),
    ("a redirect elsewhere", lambda r: http(b"", 307, location="http://example.test/mcp"), HttpRefusal, "maybe"),
    ("a result that is no object", lambda r: http(r.reply([1])), InvalidReply, "maybe"),
    ("an error that is no object", lambda r: http(r.reply(1).replace(b"result", b"error")), InvalidReply, "maybe"),
]


@pytest.mark.parametrize(("answer", "error", "executed"), [f[1:] for f in FAILURES], ids=[f[0] for f in FAILURES])
async def test_every_invalid_response_is_a_typed_error_with_executed(
    answer: Callable[[Request], bytes | None], error: type[ClientError], executed: str
) -> None:
    async with scripted(call_script(answer)) as server, stateful(server.url, max_reply_bytes=4000) as session:
        with pytest.raises(error) as caught:
            await session.call_tool("x", timeout=0.5 if error is DeadlineExceeded else 120)
        assert caught.value.executed == executed
        assert [request.method for request in server.seen].count("tools/call") == 1


async def test_refusal_with_a_json_rpc_error_has_its_message() -> None:
    async with scripted(call_script(lambda r: http(stated(r, "no"), 503))) as server, stateful(server.url) as session:
        with pytest.raises(HttpRefusal) as caught:
            await session.call_tool("x")
    assert "jsonrpc" not in str(caught.value)
    assert str(caught.value).endswith(": no")


async def test_a_refused_connection_is_a_typed_error() -> None:
    with pytest.raises(CannotConnect):
        async with connect("http://127.0.0.1:1/mcp"):
            pass
    for nonsense in ("ftp://x/mcp", "mcp", "http://"):
        with pytest.raises(CannotConnect):
            async with connect(nonsense):
                pass
    with pytest.raises(CannotConnect):
        async with connect(["/no/such/program"]):
            pass


async def test_an_expired_session_is_reopened_and_the_call_repeated() -> None:
    def answer(request: Request) -> bytes:
        if request.headers.get("mcp-session-id") == "session-1":
            return http(b'{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"gone"}}', 404)
        return http(request.reply({"content": [{"type": "text", "text": "hi"}]}))

    async with scripted(call_script(answer)) as server, stateful(server.url) as session:
        results = await asyncio.gather(*(session.call_tool("x") for _ in range(5)))
        assert {result.text for result in results} == {"hi"}
        assert [request.method for request in server.seen].count("initialize") == 2


async def test_a_broken_stream_is_resumed_where_it_ended() -> None:
    def script(request: Request) -> bytes:
        if request.verb == "GET" and "last-event-id" not in request.headers:
            return http(b"", 405)
        if request.verb == "GET":
            done = {"jsonrpc": "2.0", "id": call["id"], "result": {"content": [{"type": "text", "text": "resumed"}]}}
            return http(b"id: 2\ndata: " + json.dumps(done).encode() + b"\n\n", kind="text/event-stream")
        call["id"] = request.message["id"]
        return http(b"id: 1\nretry: 20\ndata:\n\n", kind="text/event-stream")

    call: dict[str, Any] = {}
    async with scripted(script) as server, stateful(server.url) as session:
        assert (await session.call_tool("x")).text == "resumed"
        resumed = [request for request in server.seen if "last-event-id" in request.headers]
        assert [request.headers["last-event-id"] for request in resumed] == ["1"]
        assert resumed[0].headers["mcp-session-id"] == "session-1"


async def test_a_redirect_within_the_same_origin_is_followed() -> None:
    def answer(request: Request) -> bytes:
        if request.path == "/mcp":
            return http(b"", 307, location="/mcp/")
        return http(request.reply({"content": []}))

    async with scripted(call_script(answer)) as server, stateful(server.url) as session:
        assert not (await session.call_tool("x")).is_error


async def test_a_lost_read_request_is_repeated_but_a_lost_call_is_not() -> None:
    lost: list[str] = []

    def answer(request: Request) -> bytes | None:
        if request.method not in lost:
            lost.append(request.method)
            return None
        return http(request.reply({"tools": [], "content": []}))

    async with scripted(call_script(answer)) as server, stateful(server.url) as session:
        assert await session.list_tools() == []
        with pytest.raises(ConnectionLost):
            await session.call_tool("x")
        assert [request.method for request in server.seen].count("tools/call") == 1


async def test_lost_request_of_unknown_method_is_not_repeated() -> None:
    """A vendor's method may run something, such as `tasks/create`."""
    async with scripted(call_script(lambda request: None)) as server, stateful(server.url) as session:
        with pytest.raises(ConnectionLost):
            await session.request("tasks/create", {"action": "charge_card"})
        assert [request.method for request in server.seen].count("tasks/create") == 1


async def test_a_timeout_sends_a_cancellation_to_a_stateful_server() -> None:
    withdrawn = asyncio.Event()

    def script(request: Request) -> bytes:
        return http(b"", 405) if request.verb == "GET" else b""

    async with scripted(script) as server, stateful(server.url) as session:
        with pytest.raises(DeadlineExceeded):
            await session.call_tool("x", timeout=0.1)
        async with asyncio.timeout(120):
            while not any(request.method == "notifications/cancelled" for request in server.seen):
                await asyncio.sleep(0.01)
            withdrawn.set()
        call = next(request for request in server.seen if request.method == "tools/call")
        notice = next(request for request in server.seen if request.method == "notifications/cancelled")
        assert notice.message["params"]["requestId"] == call.message["id"]


async def test_secrets_with_line_breaks_never_reach_the_wire() -> None:
    with pytest.raises(CannotConnect):
        async with connect("http://127.0.0.1:1/mcp", headers={"x-test": "a\r\nb: c"}):
            pass


async def test_a_server_that_refuses_both_generations_is_a_typed_error() -> None:
    def refuse(request: Request) -> bytes:
        error = {"jsonrpc": "2.0", "id": request.message.get("id"), "error": {"code": -32000, "message": "never"}}
        return http(json.dumps(error).encode(), 400)

    async with scripted(refuse, handshake=False) as server:
        with pytest.raises(VersionUnsupported, match="never"):
            async with connect(server.url):
                pass


async def test_a_private_authority_is_trusted_only_when_given(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    inside.load_cert_chain(certificate, key)
    script = Scripted(call_script(lambda request: http(request.reply({"content": []}))), handshake=True)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0, ssl=inside)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    async with stateful(url, tls=ssl.create_default_context(cafile=certificate)) as session:
        assert not (await session.call_tool("x")).is_error
    with pytest.raises(CannotConnect, match="certificate"):
        async with stateful(url):
            pass
    server.close()


def self_signed(folder: Path) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
    authority = x509.BasicConstraints(ca=True, path_length=0)
    certificate = builder.add_extension(address, False).add_extension(authority, True).sign(key, hashes.SHA256())
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    return str(files[0]), str(files[1])
