"""Every point at which an exchange can fail, and what each proves about the request."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from dataclasses import dataclass

import pytest
from tests.harness.narrow import transport_of
from tests.wire.http_client.raw_server import (
    HEAD,
    OK,
    STREAM,
    Script,
    answering,
    answering_then_closing,
    answering_then_resetting,
    chunk,
    forever,
    read_request,
    reset,
    serving,
)

from taskgate.core.errors import Executed
from taskgate.mcp.http import HttpClient, HttpFailure, SseEvent, Stage, Target
from taskgate.mcp.http.connect import reason_of

BIG = b"x" * (24 * 1024 * 1024)  # more than the socket buffers of both sides hold


pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")


async def close_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    reset(writer)


async def reset_after_some(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(8192)
    reset(writer)


async def half_close_after_some(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Closes its sending side but continues to read: the rest of the request must not arrive."""
    await reader.readexactly(8192)
    writer.write_eof()
    await forever(reader, writer)


async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    transport_of(writer).pause_reading()
    await asyncio.sleep(3)


async def early_reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(8192)
    writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 4\r\n\r\nlarg")
    await forever(reader, writer)


@dataclass(frozen=True)
class Case:
    script: Script
    stage: Stage
    executed: Executed
    body: bytes = b"{}"
    deadline_s: float = 120.0
    status: int | None = None
    idle_s: float | None = None


CASES = {
    "reset after half of a large body": Case(reset_after_some, Stage.WRITE, Executed.NO, BIG),
    "half close after half of a large body": Case(half_close_after_some, Stage.WRITE, Executed.NO, BIG),
    "deadline while the peer does not read": Case(read_nothing, Stage.DEADLINE, Executed.NO, BIG, 0.4),
    "closed after reading the request": Case(answering_then_closing(b""), Stage.AWAIT_HEAD, Executed.MAYBE),
    "reset after reading the request": Case(answering_then_resetting(b""), Stage.AWAIT_HEAD, Executed.MAYBE),
    "closed inside the head": Case(answering_then_closing(HEAD), Stage.AWAIT_HEAD, Executed.MAYBE),
    "closed after an interim reply": Case(
        answering_then_closing(b"HTTP/1.1 100 Continue\r\n\r\n"), Stage.AWAIT_HEAD, Executed.MAYBE
    ),
    "truncated content-length": Case(
        answering_then_closing(HEAD + b"content-length: 9\r\n\r\n{}"), Stage.READ_BODY, Executed.MAYBE, status=200
    ),
    "truncated chunk": Case(
        answering_then_closing(HEAD + b"transfer-encoding: chunked\r\n\r\n9\r\n{}"),
        Stage.READ_BODY,
        Executed.MAYBE,
        status=200,
    ),
    "missing last chunk": Case(
        answering_then_closing(HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n"),
        Stage.READ_BODY,
        Executed.MAYBE,
        status=200,
    ),
    "reset inside an event stream": Case(
        answering_then_resetting(STREAM + chunk(b"data: 1\n\n")), Stage.READ_BODY, Executed.MAYBE, status=200
    ),
    "garbage status line": Case(answering(b"SSH-2.0-OpenSSH\r\n\r\n"), Stage.MALFORMED, Executed.MAYBE),
    "garbage chunk size": Case(
        answering(HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n"), Stage.MALFORMED, Executed.MAYBE, status=200
    ),
    "both framings": Case(
        answering(HEAD + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n"), Stage.MALFORMED, Executed.MAYBE
    ),
    "two lengths": Case(
        answering(HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}"), Stage.MALFORMED, Executed.MAYBE
    ),
    "switching protocols": Case(
        answering(b"HTTP/1.1 101 Go\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"), Stage.MALFORMED, Executed.MAYBE
    ),
    "endless interim replies": Case(
        answering(b"HTTP/1.1 102 Processing\r\n\r\n" * 40), Stage.MALFORMED, Executed.MAYBE
    ),
    "compressed": Case(
        answering(HEAD + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}"),
        Stage.MALFORMED,
        Executed.MAYBE,
        status=200,
    ),
    "compressed transfer": Case(
        answering(HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n"), Stage.MALFORMED, Executed.MAYBE, status=200
    ),
    "one endless header": Case(answering(HEAD + b"x: " + b"a" * 70_000), Stage.MALFORMED, Executed.MAYBE),
    "large complete head": Case(
        answering(HEAD + b"x: " + b"a" * 70_000 + b"\r\ncontent-length: 2\r\n\r\n{}"), Stage.MALFORMED, Executed.MAYBE
    ),
    "too many headers": Case(
        answering(HEAD + b"x: a\r\n" * 300 + b"content-length: 2\r\n\r\n{}"), Stage.MALFORMED, Executed.MAYBE
    ),
    "announced too large": Case(
        answering(HEAD + b"content-length: 5000000\r\n\r\n"), Stage.TOO_LARGE, Executed.MAYBE, status=200
    ),
    "chunked too large": Case(
        answering(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk(b"x" * 70_000)),
        Stage.TOO_LARGE,
        Executed.MAYBE,
        status=200,
    ),
    "event too large": Case(
        answering(STREAM + chunk(b"data: " + b"x" * 70_000)), Stage.TOO_LARGE, Executed.MAYBE, status=200
    ),
    "deadline before the head": Case(forever, Stage.DEADLINE, Executed.MAYBE, deadline_s=0.2),
    "deadline inside the body": Case(
        answering(HEAD + b"content-length: 9\r\n\r\n{}"),
        Stage.DEADLINE,
        Executed.MAYBE,
        deadline_s=0.2,
        status=200,
    ),
    "silence inside a stream": Case(
        answering(STREAM + chunk(b"data: 1\n\n")), Stage.DEADLINE, Executed.MAYBE, status=200, idle_s=0.2
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_failure_has_stage_and_executed(name: str) -> None:
    case = CASES[name]
    client = HttpClient(max_response_bytes=65536, max_event_bytes=65536)
    async with serving(case.script) as server:
        target = Target.parse(server.url)
        with pytest.raises(HttpFailure) as caught:
            await client.exchange(
                target, body=case.body, deadline_s=case.deadline_s, idle_s=case.idle_s, on_event=lambda event: None
            )
        failure = caught.value
        assert (failure.stage, failure.executed, failure.status) == (case.stage, case.executed, case.status), failure
        await client.close()
        assert client.open_connections(target.origin) == 0


async def test_connection_reset_before_reading_is_a_failure() -> None:
    """The kernel may or may not have taken the small request before it receives the reset; both are correct."""
    client = HttpClient()
    async with serving(close_at_once) as server:
        with pytest.raises(HttpFailure) as caught:
            await client.exchange(Target.parse(server.url), body=b"{}", deadline_s=5)
        assert caught.value.stage in (Stage.CONNECT, Stage.WRITE, Stage.AWAIT_HEAD)
        assert (caught.value.stage is Stage.AWAIT_HEAD) == (caught.value.executed is Executed.MAYBE)
    await client.close()


async def test_refused_connection_is_not_executed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = HttpClient()
    with pytest.raises(HttpFailure) as caught:
        await client.exchange(Target.parse(f"http://127.0.0.1:{port}/"), deadline_s=5)
    assert (caught.value.stage, caught.value.executed) == (Stage.CONNECT, Executed.NO)
    assert caught.value.reason == "connection refused"
    await client.close()


async def test_unknown_name_is_not_executed() -> None:
    client = HttpClient()
    with pytest.raises(HttpFailure) as caught:
        await client.exchange(Target.parse("http://nonexistent.invalid/"), deadline_s=20)
    assert (caught.value.stage, caught.value.executed) == (Stage.RESOLVE, Executed.NO)
    assert caught.value.reason == "no such name"
    await client.close()


async def test_tls_to_plain_server_is_not_executed() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    client = HttpClient()
    async with serving(plain) as server:
        with pytest.raises(HttpFailure) as caught:
            await client.exchange(Target.parse(f"https://127.0.0.1:{server.port}/"), deadline_s=5)
        assert (caught.value.stage, caught.value.executed) == (Stage.TLS, Executed.NO)
        assert caught.value.reason == "TLS handshake failed"
        await client.close()


async def test_missing_tls_handshake_fails_at_connect_timeout() -> None:
    client = HttpClient(connect_timeout_s=0.2)
    async with serving(forever) as server:
        target = Target.parse(f"https://127.0.0.1:{server.port}/")
        with pytest.raises(HttpFailure) as caught:
            await client.exchange(target, deadline_s=5)
        assert (caught.value.stage, caught.value.executed) == (Stage.TLS, Executed.NO)
        assert caught.value.reason == "no answer in time"
        await client.close()


def certificate_error(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed: gate.example is not 10.0.0.1")
    error.verify_code = code
    return error


@pytest.mark.parametrize(
    "error, reason",
    [
        (certificate_error(10), "TLS certificate expired"),
        (certificate_error(18), "TLS certificate not trusted"),
        (certificate_error(62), "TLS certificate of another host"),
        (certificate_error(64), "TLS certificate of another host"),
        (OSError(errno.ENETUNREACH, "10.0.0.1"), "no route to it"),
        (FileNotFoundError(errno.ENOENT, "/run/secret.sock"), "no such socket"),
        (OSError("10.0.0.1"), ""),
    ],
)
def test_reason_is_a_fixed_text(error: OSError, reason: str) -> None:
    assert reason_of(error) == reason


async def test_deadline_during_handshake_is_not_executed() -> None:
    client = HttpClient()
    async with serving(forever) as server:
        target = Target.parse(f"https://127.0.0.1:{server.port}/")
        with pytest.raises(HttpFailure) as caught:
            await client.exchange(target, deadline_s=0.2)
        assert (caught.value.stage, caught.value.executed) == (Stage.DEADLINE, Executed.NO)
        await client.close()


async def test_passed_deadline_sends_nothing() -> None:
    client = HttpClient()
    async with serving(answering(OK)) as server:
        with pytest.raises(HttpFailure) as caught:
            await client.exchange(Target.parse(server.url), deadline_s=0)
        assert (caught.value.stage, caught.value.executed) == (Stage.DEADLINE, Executed.NO)
        assert server.connections == 0


async def test_wait_for_connection_counts_towards_deadline() -> None:
    client = HttpClient(max_connections_per_origin=1)
    async with serving(forever) as server:
        target = Target.parse(server.url)
        first = asyncio.create_task(client.exchange(target, deadline_s=5))
        while client.open_connections(target.origin) == 0:
            await asyncio.sleep(0.005)
        with pytest.raises(HttpFailure) as caught:
            await client.exchange(target, deadline_s=0.2)
        assert (caught.value.stage, caught.value.executed) == (Stage.POOL_FULL, Executed.NO)
        assert server.connections == 1
        first.cancel()
        await asyncio.wait([first])
        await client.close()


async def test_full_queue_fails_at_once() -> None:
    client = HttpClient(max_connections_per_origin=1, max_waiting_per_origin=0)
    async with serving(forever) as server:
        target = Target.parse(server.url)
        first = asyncio.create_task(client.exchange(target, deadline_s=5))
        while client.open_connections(target.origin) == 0:
            await asyncio.sleep(0.005)
        with pytest.raises(HttpFailure) as caught:
            await client.exchange(target, deadline_s=None)
        assert (caught.value.stage, caught.value.executed) == (Stage.POOL_FULL, Executed.NO)
        await client.close()
        with pytest.raises(HttpFailure):
            await first


async def test_server_error_is_a_reply() -> None:
    client = HttpClient()
    async with serving(answering(b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\nno")) as server:
        reply = await client.exchange(Target.parse(server.url), body=b"{}", deadline_s=5)
        assert (reply.status, reply.body, reply.request_sent) == (503, b"no", True)
        await client.close()


async def test_reply_before_request_was_sent_is_marked_and_connection_not_reused() -> None:
    client = HttpClient()
    async with serving(early_reply) as server:
        target = Target.parse(server.url)
        reply = await client.exchange(target, body=BIG, deadline_s=5)
        assert (reply.status, reply.body, reply.request_sent) == (413, b"larg", False)
        assert client.idle_connections(target.origin) == 0
        await client.close()


async def test_events_before_reset_are_delivered() -> None:
    client = HttpClient()
    seen: list[SseEvent] = []
    async with serving(answering_then_resetting(STREAM + chunk(b"data: 1\n\ndata: 2\n\n"))) as server:
        with pytest.raises(HttpFailure):
            await client.exchange(Target.parse(server.url), deadline_s=5, on_event=seen.append)
        assert [event.data for event in seen] == [b"1", b"2"]
        await client.close()


async def test_failing_listener_ends_only_its_exchange() -> None:
    client = HttpClient()

    def fail(event: SseEvent) -> bool:
        raise KeyError("listener")

    async with serving(answering(STREAM + chunk(b"data: 1\n\n"))) as server:
        target = Target.parse(server.url)
        with pytest.raises(KeyError, match="listener"):
            await client.exchange(target, deadline_s=5, on_event=fail)
        assert client.idle_connections(target.origin) == 0
        await client.close()


async def test_closing_client_fails_open_exchanges() -> None:
    client = HttpClient()
    async with serving(forever) as server:
        target = Target.parse(server.url)
        running = asyncio.create_task(client.exchange(target, body=b"{}", deadline_s=5))
        while client.open_connections(target.origin) == 0:
            await asyncio.sleep(0.005)
        await client.close()
        with pytest.raises(HttpFailure):
            await running
        with pytest.raises(HttpFailure, match="closed"):
            await client.exchange(target, deadline_s=5)


async def test_large_request_to_slow_reader_is_sent_completely() -> None:
    lengths: list[int] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await read_request(reader)
        lengths.append(len(body))
        writer.write(OK)
        await writer.drain()

    client = HttpClient()
    async with serving(script) as server:
        reply = await client.exchange(Target.parse(server.url), body=BIG, deadline_s=20)
        assert (reply.status, reply.request_sent, lengths) == (200, True, [len(BIG)])
        await client.close()
