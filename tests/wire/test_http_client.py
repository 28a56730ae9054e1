"""What the HTTP client does when things go well: framing, reuse, streams, cancelling, TLS."""

from __future__ import annotations

import asyncio
import datetime
import gc
import ipaddress
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from raw_server import OK, STREAM, answering, answering_then_closing, chunk, forever, read_request, serving

from taskgate.mcp.http import HttpClient, HttpFailure, HttpHead, SseEvent, Stage, Target

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CLOSES = (
    HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    HEAD + b"\r\n{}",
)


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    policy = request.param()
    assert isinstance(policy, asyncio.AbstractEventLoopPolicy)
    return policy


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("wire", "status", "body"),
    [
        pytest.param(OK, 200, b"{}", id="content-length"),
        pytest.param(
            HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", 200, b"{}", id="chunked"
        ),
        pytest.param(
            HEAD + b"transfer-encoding: chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\ntrailer: 1\r\n\r\n", 200, b"{}", id="trailer"
        ),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", id="no content"),
        pytest.param(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n", 202, b"", id="accepted"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nx: 1\r\n\r\n" + OK, 200, b"{}", id="interim"),
        pytest.param(HEAD + b"content-encoding: identity\r\ncontent-length: 2\r\n\r\n{}", 200, b"{}", id="identity"),
        pytest.param(STREAM + chunk(b"data: 1\n\n") + chunk(b""), 200, b"data: 1\n\n", id="stream nobody listens to"),
    ],
)
async def test_each_framing_is_read_and_the_connection_is_used_again(wire: bytes, status: int, body: bytes) -> None:
    client = HttpClient()
    async with serving(answering(wire, wire)) as server:
        target = Target.parse(server.url)
        for _ in range(2):
            reply = await client.exchange(target, body=b"{}", deadline_s=5)
            assert (reply.status, reply.body, reply.request_sent, reply.stopped) == (status, body, True, False)
        assert server.connections == 1
        await client.close()


@pytest.mark.parametrize("wire", CLOSES, ids=["connection: close", "HTTP/1.0", "until close"])
async def test_a_reply_that_ends_the_connection_is_read_and_the_next_call_opens_another(wire: bytes) -> None:
    client = HttpClient()
    async with serving(answering_then_closing(wire)) as server:
        target = Target.parse(server.url)
        for _ in range(2):
            reply = await client.exchange(target, body=b"{}", deadline_s=5)
            assert (reply.status, reply.body) == (200, b"{}")
        assert server.connections == 2
        await client.close()


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad", b"garbage\r\n", b"H"])
async def test_bytes_behind_a_reply_are_never_taken_for_the_next(garbage: bytes) -> None:
    client = HttpClient()
    async with serving(answering(OK + garbage, OK)) as server:
        target = Target.parse(server.url)
        for _ in range(2):
            assert (await client.exchange(target, body=b"{}", deadline_s=5)).body == b"{}"
        assert server.connections == 2
        await client.close()


async def test_the_request_is_written_as_configured() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append(await read_request(reader))
            writer.write(OK)

    client = HttpClient()
    async with serving(script) as server:
        target = Target.parse(server.url + "?a=ä b", {"Authorization": "Bearer x"})
        await client.exchange(target, b"POST", [(b"Mcp-Session-Id", b"1")], b"{}", deadline_s=5)
        await client.exchange(target, b"GET", deadline_s=5)
        await client.close()
    fixed = b"Host: 127.0.0.1:%d\r\nUser-Agent: taskgate\r\nAuthorization: Bearer x\r\n" % server.port
    assert seen == [
        (
            b"POST /mcp?a=%C3%A4%20b HTTP/1.1\r\n" + fixed + b"Mcp-Session-Id: 1\r\nContent-Length: 2\r\n\r\n",
            b"{}",
        ),
        (b"GET /mcp?a=%C3%A4%20b HTTP/1.1\r\n" + fixed + b"\r\n", b""),
    ]


async def test_the_first_value_of_a_header_wins_and_all_are_kept() -> None:
    heads: list[HttpHead] = []
    client = HttpClient()
    async with serving(answering(b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\ncontent-length: 0\r\n\r\n")) as server:
        reply = await client.exchange(Target.parse(server.url), deadline_s=5, on_head=heads.append)
        assert reply.headers[b"x-a"] == b"1"
        assert reply.header_list[:2] == [(b"x-a", b"1"), (b"x-a", b"2")]
        assert [head.status for head in heads] == [200]
        await client.close()


async def test_an_event_is_handed_over_the_moment_it_arrives() -> None:
    proceed = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM + chunk(b"id: 1\ndata:\n\n"))
        await proceed.wait()
        writer.write(chunk(b"data: 2\n\n") + chunk(b""))

    def listen(event: SseEvent) -> None:
        seen.append(event)
        proceed.set()

    seen: list[SseEvent] = []
    client = HttpClient()
    async with serving(script) as server:
        reply = await client.exchange(Target.parse(server.url), deadline_s=5, on_event=listen)
        assert seen == [SseEvent(b"", id="1"), SseEvent(b"2")]
        assert (reply.status, reply.body, reply.stopped) == (200, b"", False)
        await client.close()


async def test_a_listener_that_has_heard_enough_is_answered_at_once_and_the_connection_is_used_again() -> None:
    answered = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await read_request(reader)
            writer.write(STREAM + chunk(b"data: 1\n\n"))
            await answered.wait()
            answered.clear()
            writer.write(chunk(b"data: late\n\n") + chunk(b""))
        await reader.read(1)

    seen: list[bytes] = []

    def listen(event: SseEvent) -> bool:
        seen.append(event.data)
        return True

    client = HttpClient()
    async with serving(script) as server:
        target = Target.parse(server.url)
        for _ in range(2):
            reply = await client.exchange(target, deadline_s=5, on_event=listen)
            assert reply.stopped
            answered.set()
            await until(lambda: client.idle_connections(target.origin) == 1)
        assert (seen, server.connections) == ([b"1", b"1"], 1)
        await client.close()


@pytest.mark.parametrize("rest", [chunk(b"x" * 100_000), b""], ids=["endless talk", "endless silence"])
async def test_a_stream_that_does_not_end_after_its_answer_is_closed(rest: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM + chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.05)
        writer.write(rest)
        await reader.read(1)

    client = HttpClient()
    async with serving(script) as server:
        target = Target.parse(server.url)
        await client.exchange(target, deadline_s=5, on_event=lambda event: True)
        await until(lambda: server.open_now == 0 and server.connections == 1)
        assert client.open_connections(target.origin) == 0
        await client.close()


async def test_an_idle_connection_that_the_server_closed_is_not_used() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await writer.drain()

    client = HttpClient()
    async with serving(script) as server:
        target = Target.parse(server.url)
        for turn in range(3):
            assert (await client.exchange(target, body=b"{}", deadline_s=5)).status == 200
            await until(lambda turn=turn: server.open_now == 0 and server.connections == turn + 1)  # type: ignore[misc]
        assert server.connections == 3
        await client.close()


async def test_an_idle_connection_is_given_up_after_its_time() -> None:
    client = HttpClient(idle_s=0.1)
    async with serving(answering(OK, OK)) as server:
        target = Target.parse(server.url)
        await client.exchange(target, body=b"{}", deadline_s=5)
        assert client.idle_connections(target.origin) == 1
        await until(lambda: client.open_connections(target.origin) == 0)
        await client.close()


async def test_an_idle_connection_is_not_used_after_its_time_although_the_loop_was_held_up() -> None:
    client = HttpClient(idle_s=0.1)
    async with serving(answering(OK, OK)) as server:
        target = Target.parse(server.url)
        await client.exchange(target, body=b"{}", deadline_s=5)
        time.sleep(0.15)  # Nothing runs meanwhile, no timer either.
        await client.exchange(target, body=b"{}", deadline_s=5)
        assert server.connections == 2
        await client.close()


async def test_the_announced_keep_alive_of_the_peer_is_respected() -> None:
    client = HttpClient(idle_s=60)
    reply = HEAD + b"keep-alive: timeout=1, max=5\r\ncontent-length: 2\r\n\r\n{}"
    async with serving(answering(reply, reply)) as server:
        target = Target.parse(server.url)
        await client.exchange(target, body=b"{}", deadline_s=5)
        await until(lambda: client.open_connections(target.origin) == 0)
        await client.close()


async def test_cancelling_the_caller_closes_the_connection_at_once() -> None:
    client = HttpClient()
    async with serving(forever) as server:
        target = Target.parse(server.url)
        calls = [asyncio.create_task(client.exchange(target, body=b"{}", deadline_s=60)) for _ in range(20)]
        await until(lambda: server.open_now == 20)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert all(call.cancelled() for call in calls)
        await until(lambda: server.open_now == 0 and client.open_connections(target.origin) == 0)
        await client.close()


async def test_cancelling_while_connecting_or_waiting_leaks_nothing() -> None:
    client = HttpClient(max_connections_per_origin=2)
    async with serving(forever) as server:
        target = Target.parse(server.url)
        for _ in range(20):
            calls = [asyncio.create_task(client.exchange(target, body=b"{}", deadline_s=60)) for _ in range(6)]
            await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
        await until(lambda: server.open_now == 0 and client.open_connections(target.origin) == 0)
        await client.close()


async def test_waiting_calls_get_their_turn_in_order() -> None:
    client = HttpClient(max_connections_per_origin=2)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await read_request(reader)
            writer.write(HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body))

    finished: list[bytes] = []

    async def call(number: int) -> None:
        finished.append((await client.exchange(target, body=b"%d" % number, deadline_s=10)).body)

    async with serving(script) as server:
        target = Target.parse(server.url)
        await asyncio.gather(*(call(number) for number in range(100)))
        assert sorted(finished, key=int) == [b"%d" % number for number in range(100)]
        assert server.connections == 2
        await client.close()


async def test_a_waiting_call_moves_up_when_a_connection_breaks() -> None:
    client = HttpClient(max_connections_per_origin=1)
    async with serving(answering_then_closing(b"")) as server:
        target = Target.parse(server.url)
        calls = [client.exchange(target, body=b"{}", deadline_s=5) for _ in range(5)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, HttpFailure) and result.status is None for result in results), results
        assert server.connections == 5
        await client.close()


async def test_a_name_with_several_addresses_is_tried_until_one_answers() -> None:
    client = HttpClient()
    async with serving(answering(OK)) as server:
        target = Target.parse(f"http://localhost:{server.port}/mcp")
        assert (await client.exchange(target, body=b"{}", deadline_s=5)).status == 200
        await client.close()


async def test_surplus_connections_are_not_kept() -> None:
    client = HttpClient(max_idle_per_origin=1)
    async with serving(answering(OK, OK)) as server:
        target = Target.parse(server.url)
        await asyncio.gather(*(client.exchange(target, body=b"{}", deadline_s=5) for _ in range(5)))
        assert server.connections == 5
        await until(lambda: server.open_now == 1)
        assert client.idle_connections(target.origin) == 1
        await client.close()


async def test_a_turn_that_comes_as_its_caller_leaves_goes_to_the_next() -> None:
    """Callers leave at every moment around the reply that frees the one connection; the last one is always served."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(OK)

    async with serving(script) as server:
        target = Target.parse(server.url)
        for turns in range(25):
            client = HttpClient(max_connections_per_origin=1)
            calls = [asyncio.create_task(client.exchange(target, body=b"{}", deadline_s=5)) for _ in range(4)]
            for _ in range(turns):
                await asyncio.sleep(0)
            calls[1].cancel()
            calls[2].cancel()
            await asyncio.wait(calls)
            assert calls[3].result().status == 200
            await client.close()


@pytest.mark.parametrize("farewell", [True, False])
async def test_over_tls_only_a_proper_farewell_ends_a_reply(tmp_path: Path, farewell: bool) -> None:
    server_context, client_context = _contexts(tmp_path)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + b"\r\n{}")
        await writer.drain()
        if not farewell:
            await asyncio.sleep(0.05)
            writer.transport.abort()

    client = HttpClient(ssl_context=client_context)
    async with serving(script, context=server_context) as server:
        exchange = client.exchange(Target.parse(f"https://127.0.0.1:{server.port}/"), body=b"{}", deadline_s=5)
        if farewell:
            assert (await exchange).body == b"{}"
        else:
            with pytest.raises(HttpFailure) as caught:
                await exchange
            assert (caught.value.stage, caught.value.partial) == (Stage.READ_BODY, b"{}")
        await client.close()


async def test_tls_works_verified_and_reused(tmp_path: Path) -> None:
    server_context, client_context = _contexts(tmp_path)
    client = HttpClient(ssl_context=client_context)
    async with serving(answering(OK, OK), context=server_context) as server:
        target = Target.parse(f"https://127.0.0.1:{server.port}/mcp")
        for _ in range(2):
            reply = await client.exchange(target, body=b"{}", deadline_s=5)
            assert (reply.status, reply.request_sent) == (200, True)
        assert server.connections == 1
        await client.close()
    strict = HttpClient()
    async with serving(answering(OK), context=server_context) as server:
        with pytest.raises(HttpFailure, match="certificate"):
            await strict.exchange(Target.parse(f"https://127.0.0.1:{server.port}/mcp"), deadline_s=5)
        await strict.close()


async def test_tls_carries_a_large_request_and_knows_when_it_did_not_leave(tmp_path: Path) -> None:
    server_context, client_context = _contexts(tmp_path)
    client = HttpClient(ssl_context=client_context)

    async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(2)

    body = b"x" * (24 * 1024 * 1024)
    async with serving(answering(OK), context=server_context) as server:
        reply = await client.exchange(Target.parse(f"https://127.0.0.1:{server.port}/"), body=body, deadline_s=20)
        assert (reply.status, reply.request_sent) == (200, True)
    async with serving(read_nothing, context=server_context) as server:
        with pytest.raises(HttpFailure) as caught:
            await client.exchange(Target.parse(f"https://127.0.0.1:{server.port}/"), body=body, deadline_s=0.5)
        assert caught.value.executed == "no"
    await client.close()


async def test_a_thousand_exchanges_leave_no_descriptor_and_no_task_behind() -> None:
    client = HttpClient()
    async with serving(answering(*[OK] * 5, b"")) as server:
        before = len(os.listdir("/dev/fd"))
        target = Target.parse(server.url)
        for _ in range(1000):
            with _ignoring_failures():
                await client.exchange(target, body=b"{}", deadline_s=0.002)
        await client.close()
        await until(lambda: server.open_now == 0)
    gc.collect()
    await until(lambda: len(os.listdir("/dev/fd")) <= before)
    assert asyncio.all_tasks() == {asyncio.current_task()}


class _ignoring_failures:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: object) -> bool:
        return kind is not None and issubclass(kind, HttpFailure)


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("ftp://host/", {}),
        ("http:///path", {}),
        ("http://user:secret@host/", {}),
        ("http://host/", {"X": "a\r\nY: b"}),
        ("http://host/", {"X": "a\0"}),
        ("http://host/", {"X Y": "a"}),
        ("http://host/", {"": "a"}),
        ("http://host/", {"Content-Length": "1"}),
        ("http://host/", {"Accept-Encoding": "gzip"}),
        ("http://host/", {"x": "1", "X": "2"}),
        ("http://host:99999/", {}),
    ],
)
def test_an_address_or_header_that_cannot_be_right_is_refused(url: str, headers: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        Target.parse(url, headers)


@pytest.mark.parametrize("header", [(b"x", b"a\nb"), (b"x:", b"a"), (b"", b"a"), (b"x", b"\x7f")])
def test_a_header_of_one_call_is_checked_too(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError):
        Target.parse("http://host/").render(b"POST", [header], b"")


@pytest.mark.parametrize("method", [b"HEAD", b"CONNECT", b"GET /x", b""])
def test_a_method_that_would_change_the_framing_is_refused(method: bytes) -> None:
    with pytest.raises(ValueError):
        Target.parse("http://host/").render(method, (), b"")


def test_addresses_are_rendered_as_servers_expect_them() -> None:
    assert Target.parse("https://Example.com/a").origin == (True, "example.com", 443, False)
    assert b"Host: example.com\r\n" in Target.parse("https://Example.com/a").fixed
    assert b"Host: [::1]:81\r\n" in Target.parse("http://[::1]:81").fixed
    assert Target.parse("http://[::1]:81").path == b"/"
    assert Target.parse("http://bücher.example/").origin.host == "xn--bcher-kva.example"
    assert b"Host: other\r\n" in Target.parse("http://host/", {"Host": "other"}).fixed


def test_another_path_of_the_same_origin_keeps_the_fixed_headers() -> None:
    base = Target.parse("http://host:81/sse", {"X": "1"})
    assert base.at("/messages?id=1") == Target.parse("http://host:81/messages?id=1", {"X": "1"})
    assert base.at("messages").path == b"/messages"
    assert base.at("http://host:81/m").path == b"/m"
    with pytest.raises(ValueError, match="origin"):
        base.at("http://elsewhere/m")
    with pytest.raises(ValueError, match="origin"):
        base.at("//elsewhere/m")


def _contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "loopback.pem"
    pem.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=str(pem))
