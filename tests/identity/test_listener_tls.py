"""TLS on real sockets: which certificate is presented, which client certificates are accepted, and which header is trusted."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.harness.programs import free_port
from tests.harness.raised import raises_problem
from tests.identity.issuer import an_issuer

from taskgate.access.client_certificates import names_in_certificate, names_in_header
from taskgate.assembly.open_app import open_app
from taskgate.config.load import load
from taskgate.lifecycle.lifecycle import Lifecycle
from taskgate.local_gateway import NoExtraEndpoint

Made = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def certificate(name: str, signed_by: Made | None = None, *names: x509.GeneralName) -> Made:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signed_by[0].subject if signed_by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=signed_by is None, path_length=None), critical=True)
    )
    if names:
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return made.sign(signed_by[1] if signed_by else key, hashes.SHA256()), key


def write(folder: Path, name: str, made: Made) -> tuple[str, str]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    key.write_bytes(made[1].private_bytes(serialization.Encoding.PEM, form, plain))
    cert.write_bytes(made[0].public_bytes(serialization.Encoding.PEM))
    return str(cert), str(key)


class Served:
    """A gateway in this process, on a real socket."""

    def __init__(self, folder: Path, listen: dict[str, Any], auth: dict[str, Any]) -> None:
        self.port = free_port()
        config = {"schema": 1, "listen": {"port": self.port, **listen}, "auth": auth, "servers": {}}
        file = folder / "taskgate.yaml"
        file.write_text(json.dumps(config))
        environment = {"TASKGATE_STATE_DIR": str(folder / "state")}
        self.life = Lifecycle(open_app(load(file, environment)), "127.0.0.1", NoExtraEndpoint, when_lost=lambda: None)

    async def __aenter__(self) -> Served:
        opened = asyncio.Event()
        self._serving = asyncio.create_task(self.life.serve(self.port, lambda _host, _port: opened.set()))
        await asyncio.wait_for(opened.wait(), 120)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.life.stop()
        await asyncio.wait_for(self._serving, 120)

    async def ask(self, context: ssl.SSLContext, **headers: str) -> tuple[int, dict[str, Any]]:
        """The status of an initialize, and the certificate that was shown."""
        who = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": who}).encode()
        lines = ["POST /mcp HTTP/1.1", f"host: localhost:{self.port}", "content-type: application/json",
                 "accept: application/json, text/event-stream", f"content-length: {len(body)}", "connection: close",
                 *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]  # fmt: skip
        async with asyncio.timeout(120):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=context, server_hostname="localhost"
            )
            shown = writer.get_extra_info("peercert")
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            first = await reader.readline()
            writer.close()
        return (int(first.split()[1]) if first else 0), shown


def trusting(ca: str, client: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if client is not None:
        context.load_cert_chain(*client)
    return context


async def turned_away(gate: Served, context: ssl.SSLContext) -> bool:
    """Whether the connection gets no reply."""
    try:
        return (await gate.ask(context))[0] == 0
    except (ssl.SSLError, ConnectionError, ValueError):
        return True


async def test_certificates_authenticate_callers_and_new_files_apply_to_new_connections(tmp_path: Path) -> None:
    ca = certificate("Test CA")
    ca_file, _ = write(tmp_path, "ca", ca)
    local = x509.DNSName("localhost")
    cert, key = write(tmp_path, "gate", certificate("first", ca, local))
    agent = write(tmp_path, "agent", certificate("whoever", ca, x509.DNSName("agent.example.com")))
    unknown = write(tmp_path, "unknown", certificate("stranger", ca))
    foreign = write(tmp_path, "foreign", certificate("cn", certificate("Other CA"), x509.DNSName("agent.example.com")))
    listen = {"tls": {"cert": cert, "key": key, "client_ca": ca_file}, "client_certificate_header": "X-Client-DN"}
    auth = {"certificates": [{"name": "dns:agent.example.com", "id": "agent"}, {"name": "cn:bot", "id": "bot"}]}
    async with Served(tmp_path, listen, auth) as gate:
        status, shown = await gate.ask(trusting(ca_file, agent))
        assert status == 200
        assert "first" in str(shown["subject"])
        assert (await gate.ask(trusting(ca_file)))[0] == 401
        assert (await gate.ask(trusting(ca_file, unknown)))[0] == 401
        # Not from a trusted proxy: the header is ignored.
        assert (await gate.ask(trusting(ca_file), x_client_dn="CN=bot"))[0] == 401
        assert await turned_away(gate, trusting(ca_file, foreign))
        old = trusting(ca_file, agent)
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        assert await turned_away(gate, old)
        write(tmp_path, "gate", certificate("second", ca, local))
        async with asyncio.timeout(60):
            while "second" not in str((await gate.ask(trusting(ca_file, agent)))[1]["subject"]):
                await asyncio.sleep(0.2)
        Path(cert).write_text("half")
        await asyncio.sleep(1.5)
        assert (await gate.ask(trusting(ca_file, agent)))[0] == 200


async def test_a_client_without_a_required_certificate_is_refused(tmp_path: Path) -> None:
    ca = certificate("Test CA")
    ca_file, _ = write(tmp_path, "ca", ca)
    cert, key = write(tmp_path, "gate", certificate("gate", ca, x509.DNSName("localhost")))
    bot = write(tmp_path, "bot", certificate("bot", ca))
    tls = {"cert": cert, "key": key, "client_ca": ca_file, "require_client_cert": True}
    auth = {"certificates": [{"name": "cn:bot", "id": "bot"}]}
    async with Served(tmp_path, {"tls": tls}, auth) as gate:
        assert (await gate.ask(trusting(ca_file, bot)))[0] == 200
        assert await turned_away(gate, trusting(ca_file))


async def test_a_trusted_proxy_names_its_clients_certificate(tmp_path: Path) -> None:
    ca = certificate("Test CA")
    ca_file, _ = write(tmp_path, "ca", ca)
    cert, key = write(tmp_path, "gate", certificate("gate", ca, x509.DNSName("localhost")))
    listen = {"tls": {"cert": cert, "key": key}, "trusted_proxies": ["127.0.0.1"], "client_certificate_header": "X-DN"}
    auth = {"certificates": [{"name": "cn:bot", "id": "bot"}]}
    async with Served(tmp_path, listen, auth) as gate:
        assert (await gate.ask(trusting(ca_file), x_dn="CN=bot,O=Example"))[0] == 200
        for other in ("CN=stranger", "CN=bot,CN=admin", "O=bot", ""):
            assert (await gate.ask(trusting(ca_file), x_dn=other))[0] == 401


@pytest.mark.parametrize("opaque", [True, False])
async def test_a_token_bound_to_a_certificate_is_accepted_on_its_connections_only(tmp_path: Path, opaque: bool) -> None:
    ca, local = certificate("Test CA"), x509.DNSName("localhost")
    ca_file, _ = write(tmp_path, "ca", ca)
    cert, key = write(tmp_path, "gate", certificate("gate", ca, local))
    own = certificate("own", ca)
    owner, thief = write(tmp_path, "own", own), write(tmp_path, "thief", certificate("thief", ca))
    digest = own[0].fingerprint(hashes.SHA256())
    confirmation = {"x5t#S256": base64.urlsafe_b64encode(digest).rstrip(b"=").decode()}
    listen = {"tls": {"cert": cert, "key": key, "client_ca": ca_file}}
    async with an_issuer(free_port()) as issuer:
        claims = json.dumps({**issuer.claims(cnf=confirmation), "active": True}).encode()
        issuer.pages["/introspect"] = lambda _: (200, claims)
        trusted = {"issuer": issuer.url, "audiences": ["gate"]}
        asked = {**trusted, "url": f"{issuer.url}/introspect", "client_id": "gate", "client_secret": "s" * 32}
        auth: dict[str, Any] = {"introspection": asked} if opaque else {"jwt": [trusted]}
        bearer = f"Bearer {'opaque' if opaque else issuer.token(cnf=confirmation)}"
        async with Served(tmp_path, listen, auth) as gate:
            for _ in range(2):  # A new token, and one that was verified before.
                for shown in (None, thief):
                    assert (await gate.ask(trusting(ca_file, shown), authorization=bearer))[0] == 401
                assert (await gate.ask(trusting(ca_file, owner), authorization=bearer))[0] == 200
        behind_proxy = {**listen, "trusted_proxies": ["127.0.0.1"]}
        async with Served(tmp_path, behind_proxy, auth) as gate:
            assert (await gate.ask(trusting(ca_file, owner), authorization=bearer))[0] == 401, "it is the proxy's"


async def test_files_that_are_no_certificate_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("nothing")
    with raises_problem("listen.tls"):
        Served(tmp_path, {"tls": {"cert": "x.pem", "key": "x.pem"}}, {})


def test_names_are_read_with_their_kind() -> None:
    subject = ((("organizationName", "Example"),), (("commonName", "bot"),))
    names = (("DNS", "a.example"), ("URI", "spiffe://x/y"), ("IP Address", "10.0.0.1"))
    assert names_in_certificate({"subject": subject, "subjectAltName": names}) == (
        "dns:a.example",
        "uri:spiffe://x/y",
        "cn:bot",
    )
    assert names_in_certificate(None) == ()
    assert names_in_header(b"uri:spiffe://x/y") == ("uri:spiffe://x/y",)
