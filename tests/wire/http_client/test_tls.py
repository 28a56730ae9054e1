"""TLS: verification, reuse, close_notify, and large requests."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.harness.narrow import transport_of
from tests.wire.http_client.raw_server import HEAD, OK, answering, read_request, serving

from taskgate.mcp.http import HttpClient, HttpFailure, Stage, Target

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")


@pytest.mark.parametrize("farewell", [True, False])
async def test_only_close_notify_ends_reply_without_length(tmp_path: Path, farewell: bool) -> None:
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


async def test_certificate_is_verified_and_connection_reused(tmp_path: Path) -> None:
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
        with pytest.raises(HttpFailure) as refused:
            await strict.exchange(Target.parse(f"https://127.0.0.1:{server.port}/mcp"), deadline_s=60)
        assert refused.value.stage is Stage.TLS
        await strict.close()


async def test_large_request_and_unsent_request_are_reported_correctly(tmp_path: Path) -> None:
    server_context, client_context = _contexts(tmp_path)
    client = HttpClient(ssl_context=client_context)

    async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport_of(writer).pause_reading()
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
