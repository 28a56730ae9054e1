"""Accounts as rows that several gateways share: one sees what another wrote, one renews at a time, notes are taken once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.postgres import migrated_url
from tests.harness.programs import free_port
from tests.harness.raised import raises_error
from tests.harness.raw_client import RawClient
from tests.identity.issuer import Issuer, an_issuer
from tests.identity.test_tokens_for_servers import TokenIssuer

from taskgate import clock
from taskgate.assembly.shared_store import agreed_keys
from taskgate.config.load import load
from taskgate.identity.account_file import FileRows
from taskgate.identity.assertions import Assertions
from taskgate.identity.documents import Documents
from taskgate.identity.login_store import Login, LoginStore
from taskgate.identity.server_tokens import ServerTokens, TokenDeps
from taskgate.identity.token_settings import StoredLogin
from taskgate.inbound.gateway_secrets import PASSPHRASE_FILE, passphrase_matches, set_passphrase
from taskgate.ports.upstream_credentials import LoginNeeded
from taskgate.store.postgres.account_rows import PostgresAccountRows
from taskgate.store.postgres.inspection import migrate_url
from taskgate.store.postgres.shared_secrets import find_secret, share_secrets
from taskgate.store.sealing import Sealing


def test_two_gateways_share_accounts_and_only_one_renews_at_a_time() -> None:
    url = migrated_url()
    migrate_url(url)
    one, other = PostgresAccountRows(url), PostgresAccountRows(url)
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


def test_shared_rows_expire_by_the_clock_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway whose clock is hours ahead would throw away every login that is under way elsewhere."""
    url, real = migrated_url(), clock.wall
    migrate_url(url)
    rows = PostgresAccountRows(url)
    rows.put("note", b"1", real() + 600)
    monkeypatch.setattr(clock, "wall", lambda: real() + 5 * 3600)
    assert rows.get("note") == b"1"
    rows.put("ahead", b"2", clock.wall() + 600)
    rows.put("over", b"3", clock.wall() - 1)
    monkeypatch.setattr(clock, "wall", lambda: real() - 5 * 3600)
    assert (rows.get("note"), rows.get("ahead"), rows.get("over")) == (b"1", b"2", None)


class _DisconnectedMeanwhile(LoginStore):
    """The account is disconnected while a gateway is about to renew its token."""

    def claim(self, server: str, principal: str, owner: str, seconds: float) -> bool:
        self.forget(server, principal)
        return super().claim(server, principal, owner, seconds)


@pytest.mark.parametrize("in_file", [True, False])
async def test_an_account_disconnected_during_a_refresh_stays_disconnected(tmp_path: Path, in_file: bool) -> None:
    url = migrated_url()
    migrate_url(url)
    rows = FileRows(tmp_path / "logins") if in_file else PostgresAccountRows(url)
    async with an_issuer(free_port()) as issuer, httpx2.AsyncClient(trust_env=False) as client:
        tokens, kept = TokenIssuer(issuer, lifetime_s=3600), _DisconnectedMeanwhile(rows, b"k" * 32)
        means = TokenDeps(
            lambda *_: Documents(lambda: client), kept, Assertions(b"k" * 32, lambda: "https://gate.example")
        )
        mine = ServerTokens(StoredLogin("notes", "http://127.0.0.1:1/mcp", issuer.url, "gate"), means)
        login = Login(issuer.url, "gate", "first", "refresh-0")
        kept.keep("notes", login)
        await mine.ready()
        with pytest.raises(LoginNeeded):
            await mine.renew(mine.headers)
        assert (tokens.forms, kept.load("notes"), mine.headers) == ([], None, ())
    assert not kept.update("notes", login)
    assert kept.load("notes") is None
    kept.keep("notes", login)
    assert kept.update("notes", Login(issuer.url, "gate", "second", "refresh-1"))
    found = kept.load("notes")
    assert found is not None
    assert found.access_token == "second"


async def test_fifty_callers_at_two_gateways_with_an_expired_token_cause_one_refresh() -> None:
    """Each gateway has its own connection to the database and its own memory; they share nothing but the rows."""
    url = migrated_url()
    migrate_url(url)
    async with an_issuer(free_port()) as issuer, httpx2.AsyncClient(trust_env=False) as client:
        tokens = TokenIssuer(issuer, lifetime_s=3600)
        settings = StoredLogin("notes", "http://127.0.0.1:1/mcp", issuer.url, "gate")

        def gateway() -> ServerTokens:
            kept = LoginStore(PostgresAccountRows(url), b"k" * 32)
            documents: Callable[..., Documents] = lambda *_: Documents(lambda: client)  # noqa: E731
            return ServerTokens(
                settings, TokenDeps(documents, kept, Assertions(b"k" * 32, lambda: "https://gate.example"))
            )

        LoginStore(PostgresAccountRows(url), b"k" * 32).keep("notes", Login(issuer.url, "gate", "ended", "refresh-0"))
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
    """An MCP server on a socket that requires one of these tokens."""

    def __init__(self) -> None:
        self.accepts = {"first"}
        self.refused = 0
        self.ran = 0

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                payload = {
                    name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n"))
                }
                body = await reader.readexactly(int(payload.get("content-length", 0)))
                status, answer = self.answer(payload.get("authorization", ""), head.split(" ")[0], body)
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


@contextlib.asynccontextmanager
async def two_programs_with_one_login(
    folder: Path, behind: GuardedServer, issuer: Issuer
) -> AsyncIterator[tuple[Gateway, Gateway, LoginStore]]:
    """Two gateways on one store, before a server that all callers share one login to."""
    url, listening = migrated_url(), await asyncio.start_server(behind.connection, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    login = {"type": "authorization_code", "issuer": issuer.url, "client_id": "gate"}
    config: dict[str, Any] = {"store": {"url": url}}
    config["servers"] = {"notes": {"url": f"http://127.0.0.1:{port}/mcp", "auth": login}}
    migrate_url(url)
    secret = share_secrets(url, {"gateway_secret": b"s" * 32}, Sealing(()))["gateway_secret"]
    kept = LoginStore(PostgresAccountRows(url), secret)
    kept.keep("notes", Login(issuer.url, "gate", "first", "refresh-0"))
    async with running_gateway(config, folder / "a") as a, running_gateway(config, folder / "b") as b:
        yield a, b, kept
    listening.close()


async def test_an_account_that_is_disconnected_at_one_gateway_is_used_by_none(tmp_path: Path) -> None:
    """Both have its token in memory, which would be good for an hour; the server would still take it."""
    behind = GuardedServer()
    async with (
        an_issuer(free_port()) as issuer,
        two_programs_with_one_login(tmp_path, behind, issuer) as (a, b, kept),
    ):
        assert [await read_a_note(gateway) for gateway in (a, b)] == ["a note"] * 2
        token = (a.state / "operator-token").read_text().strip()
        async with httpx2.AsyncClient(trust_env=False, headers={"authorization": f"Bearer {token}"}) as operator:
            reply = await operator.delete(f"{a.base}/api/v1/servers/notes/accounts")
        assert reply.json() == {"disconnected": True}
        assert kept.load("notes") is None
        assert "log" in await read_a_note(a)
        assert behind.ran == 2
        async with asyncio.timeout(60):
            while await read_a_note(b) == "a note":
                await asyncio.sleep(0.1)
        ran = behind.ran
        assert "log" in await read_a_note(b)
        assert behind.ran == ran
        kept.keep("notes", Login(issuer.url, "gate", "first", "refresh-0"))
        assert [await read_a_note(gateway) for gateway in (a, b)] == ["a note"] * 2


async def test_fifty_callers_at_two_gateway_programs_cause_one_refresh(tmp_path: Path) -> None:
    """Both have used the login; then its token ends, and all notice at once."""
    behind = GuardedServer()
    async with an_issuer(free_port()) as issuer:
        tokens = TokenIssuer(issuer, lifetime_s=3600)
        async with two_programs_with_one_login(tmp_path, behind, issuer) as (a, b, logins):
            assert [await read_a_note(gateway) for gateway in (a, b)] == ["a note"] * 2
            assert tokens.forms == []
            behind.accepts = {"token-1"}
            replies = await asyncio.gather(*(read_a_note(gateway) for gateway in (a, b) for _ in range(25)))
            assert replies == ["a note"] * 50
            assert behind.refused >= 2, "both had to find out"
            assert behind.ran == 52, "what was refused was not run, and what ran was not sent again"
            assert [form["refresh_token"] for form in tokens.forms] == [["refresh-0"]]
            kept = logins.load("notes")
            assert kept is not None
            assert (kept.access_token, kept.refresh_token) == ("token-1", "refresh-1")


def test_the_latest_passphrase_applies_at_every_gateway(tmp_path: Path) -> None:
    """Set on one machine it would guard nothing if the operator's token could approve at a gateway on another one."""
    url = migrated_url()

    def started(name: str) -> str | None:
        file = tmp_path / f"{name}.yaml"
        file.write_text(json.dumps({"schema": 1, "servers": {}, "store": {"url": url, "key": "k" * 32}}))
        loaded = load(file, {"TASKGATE_STATE_DIR": str(tmp_path / name)})
        return agreed_keys(loaded, url, "token-of-the-operator-0123456789", b"s" * 32)[2]

    def needs(name: str, passphrase: str) -> bool:
        found = started(name)
        return found is not None and passphrase_matches(found, passphrase)

    assert (started("a"), started("b")) == (None, None)
    set_passphrase(tmp_path / "b", "first")
    assert needs("b", "first")
    assert needs("a", "first")
    set_passphrase(tmp_path / "a", "second")
    os.utime(tmp_path / "a" / PASSPHRASE_FILE, (4e9, 4e9))
    assert needs("a", "second")
    assert needs("b", "second")
    assert needs("a", "second")


def test_secrets_that_gateways_share_are_encrypted_where_the_store_has_a_key() -> None:
    """The operator's token, and the secret that accounts are encrypted with: with them in a dump the accounts would be open."""
    url = migrated_url()
    ours = {"operator_token": b"token-of-the-operator-0123456789", "gateway_secret": b"s" * 32}

    def rows() -> bytes:
        with psycopg.connect(url) as connection:
            return b"".join(bytes(row[0]) for row in connection.execute("SELECT value FROM keepsakes"))

    assert share_secrets(url, ours, Sealing(())) == ours
    assert ours["operator_token"] in rows()
    for keys in (("a" * 32,), ("b" * 32, "a" * 32), ("b" * 32,)):
        assert share_secrets(url, dict.fromkeys(ours, b"another gateway's"), Sealing(keys)) == ours
        assert ours["operator_token"] not in rows()
        assert ours["gateway_secret"] not in rows()
        assert find_secret(url, "gateway_secret", Sealing(keys)) == ours["gateway_secret"]
    for wrong in (Sealing(()), Sealing(("a" * 32,))):
        with raises_error("store_unavailable", "store.key"):
            share_secrets(url, ours, wrong)
