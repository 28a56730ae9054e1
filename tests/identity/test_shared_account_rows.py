"""Accounts as rows that several gateways share: one sees what another wrote, one renews at a time, notes are taken once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.postgres import fresh_url
from tests.harness.programs import free_port
from tests.harness.raw_client import RawClient
from tests.identity.issuer import an_issuer
from tests.identity.test_tokens_for_servers import TokenIssuer

from taskgate.core.errors import GatewayFault
from taskgate.identity.documents import Documents
from taskgate.identity.kept_logins import Assertions, KeptLogins, Login
from taskgate.identity.server_tokens import Means, ServerTokens, StoredLogin
from taskgate.store.postgres.connection import migrate_at
from taskgate.store.postgres.shared_rows import PostgresRows, known, shared
from taskgate.store.sealing import Sealing


def test_two_gateways_share_accounts_and_only_one_renews_at_a_time() -> None:
    url = fresh_url()
    migrate_at(url)
    one, other = PostgresRows(url), PostgresRows(url)
    one.put("notes\x1fann", b"\x00\xff")
    one.put("notes\x1fbob", b"2")
    one.put("old", b"3", 1.0)
    assert (other.get("notes\x1fann"), other.get("old")) == (b"\x00\xff", None)
    assert set(other.listed("notes\x1f")) == {"notes\x1fann", "notes\x1fbob"}
    assert one.claim("notes\x1fann", "one", 20)
    assert not other.claim("notes\x1fann", "other", 20)
    assert one.claim("notes\x1fann", "one", 20)
    one.release("notes\x1fann", "one")
    assert other.claim("notes\x1fann", "other", 20)
    assert (one.take("notes\x1fbob"), other.take("notes\x1fbob")) == (b"2", None)


async def test_fifty_callers_at_two_gateways_with_an_ended_token_cause_one_refresh() -> None:
    """Each gateway has its own connection to the database and its own memory; they share nothing but the rows."""
    url = fresh_url()
    migrate_at(url)
    async with an_issuer(free_port()) as issuer, httpx2.AsyncClient(trust_env=False) as client:
        tokens = TokenIssuer(issuer, life_s=3600)
        settings = StoredLogin("notes", "http://127.0.0.1:1/mcp", issuer.url, "gate")

        def gateway() -> ServerTokens:
            kept = KeptLogins(PostgresRows(url), b"k" * 32)
            documents: Callable[..., Documents] = lambda *_: Documents(lambda: client)  # noqa: E731
            return ServerTokens(settings, Means(documents, kept, Assertions(b"k" * 32, lambda: "https://gate.example")))

        KeptLogins(PostgresRows(url), b"k" * 32).keep("notes", Login(issuer.url, "gate", "ended", "refresh-0"))
        gateways = [gateway(), gateway()]
        await asyncio.gather(*(one.ready() for one in gateways))
        refused = [one.headers for one in gateways]
        assert refused == [((b"authorization", b"Bearer ended"),)] * 2
        renewed = await asyncio.gather(
            *(one.renew(headers) for one, headers in zip(gateways, refused, strict=True) for _ in range(25))
        )
        assert renewed == [True] * 50
        assert [one.headers for one in gateways] == [((b"authorization", b"Bearer token-1"),)] * 2
        assert [form["grant_type"] for form in tokens.forms] == [["refresh_token"]]


class GuardedServer:
    """An MCP server on a socket that answers only who brings one of these tokens."""

    def __init__(self) -> None:
        self.accepts = {"first"}
        self.refused = 0
        self.ran = 0

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                said = {name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n"))}
                body = await reader.readexactly(int(said.get("content-length", 0)))
                status, answer = self.answer(said.get("authorization", ""), head.split(" ")[0], body)
                lines = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n"
                writer.write(f"{lines}www-authenticate: Bearer\r\n\r\n".encode() + answer)
                await writer.drain()
        writer.close()

    def answer(self, authorization: str, method: str, body: bytes) -> tuple[int, bytes]:
        if authorization.removeprefix("Bearer ") not in self.accepts:
            self.refused += 1
            return 401, b""
        message = json.loads(body) if method == "POST" else {}
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "n", "version": "1"},
        }
        results = {
            "initialize": hello,
            "ping": {},
            "tools/list": {"tools": [{"name": "read", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "a note"}]},
        }
        self.ran += message.get("method") == "tools/call"
        if "id" not in message:
            return 202 if method == "POST" else 405, b""
        if message["method"] not in results:
            error = {"code": -32601, "message": "not here"}
            return 200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode()
        return 200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}).encode()


async def read_a_note(gateway: Gateway) -> str:
    async with RawClient(gateway.url, stateless=True) as caller:
        answer = await caller.call("notes__read", {})
        return str(answer.result["content"][0]["text"])


async def test_fifty_callers_at_two_gateway_programs_cause_one_refresh(tmp_path: Path) -> None:
    """Both have used the login; then its token ends, and all notice at once."""
    url, behind = fresh_url(), GuardedServer()
    listening = await asyncio.start_server(behind.connection, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with an_issuer(free_port()) as issuer:
        tokens = TokenIssuer(issuer, life_s=3600)
        login = {"type": "authorization_code", "issuer": issuer.url, "client_id": "gate"}
        config: dict[str, Any] = {"store": {"url": url}}
        config["servers"] = {"notes": {"url": f"http://127.0.0.1:{port}/mcp", "auth": login}}
        migrate_at(url)
        secret = shared(url, {"house_secret": b"s" * 32}, Sealing(()))["house_secret"]
        KeptLogins(PostgresRows(url), secret).keep("notes", Login(issuer.url, "gate", "first", "refresh-0"))
        async with running_gateway(config, tmp_path / "a") as a, running_gateway(config, tmp_path / "b") as b:
            assert [await read_a_note(gateway) for gateway in (a, b)] == ["a note"] * 2
            assert tokens.forms == []
            behind.accepts = {"token-1"}
            said = await asyncio.gather(*(read_a_note(gateway) for gateway in (a, b) for _ in range(25)))
            assert said == ["a note"] * 50
            assert behind.refused >= 2, "both had to find out"
            assert behind.ran == 52, "what was refused was not run, and what ran was not sent again"
            assert [form["refresh_token"] for form in tokens.forms] == [["refresh-0"]]
            kept = KeptLogins(PostgresRows(url), secret).load("notes")
            assert kept is not None
            assert (kept.access_token, kept.refresh_token) == ("token-1", "refresh-1")
    listening.close()


def test_secrets_that_gateways_share_are_encrypted_where_the_store_has_a_key() -> None:
    """The operator's token, and the secret that accounts are encrypted with: with them in a dump the accounts would be open."""
    url = fresh_url()
    ours = {"operator_token": b"token-of-the-operator-0123456789", "house_secret": b"s" * 32}

    def rows() -> bytes:
        with psycopg.connect(url) as connection:
            return b"".join(bytes(row[0]) for row in connection.execute("SELECT value FROM keepsakes"))

    assert shared(url, ours, Sealing(())) == ours
    assert ours["operator_token"] in rows()
    for keys in (("a" * 32,), ("b" * 32, "a" * 32), ("b" * 32,)):
        assert shared(url, dict.fromkeys(ours, b"another gateway's"), Sealing(keys)) == ours
        assert ours["operator_token"] not in rows()
        assert ours["house_secret"] not in rows()
        assert known(url, "house_secret", Sealing(keys)) == ours["house_secret"]
    for wrong in (Sealing(()), Sealing(("a" * 32,))):
        with pytest.raises(GatewayFault, match="needs a key"):
            shared(url, ours, wrong)
