"""Servers that require OAuth: the gateway gets a token, renews it before it expires, once for all calls, and never exposes it."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx2
import pytest
from tests.identity.issuer import Issuer, an_issuer
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.identity import server_tokens
from taskgate.identity.account_file import FileRows
from taskgate.identity.assertions import Assertions
from taskgate.identity.documents import Documents
from taskgate.identity.login_store import Login, LoginStore
from taskgate.identity.server_tokens import ServerTokens, TokenDeps
from taskgate.identity.token_settings import ClientCredentials, StoredLogin
from taskgate.inbound.gateway_secrets import gateway_secret
from taskgate.ports.upstream_credentials import LoginNeeded


class TokenIssuer:
    """The token endpoint of an issuer: issues numbered tokens and records the requests."""

    def __init__(self, issuer: Issuer, lifetime_s: int = 100) -> None:
        self.given = 0
        self.lifetime_s = lifetime_s
        self.forms: list[dict[str, list[str]]] = []
        self.refuses = False
        self.issuer = issuer
        metadata = {"issuer": issuer.url, "token_endpoint": f"{issuer.url}/token"}
        issuer.pages["/.well-known/openid-configuration"] = lambda _: (200, json.dumps(metadata).encode())
        issuer.pages["/token"] = self.answer

    def answer(self, body: bytes) -> tuple[int, bytes]:
        self.forms.append(parse_qs(body.decode()))
        if self.refuses:
            return 400, b'{"error": "invalid_grant"}'
        self.given += 1
        payload = {"access_token": f"token-{self.given}", "token_type": "Bearer", "expires_in": self.lifetime_s}
        return 200, json.dumps({**payload, "refresh_token": f"refresh-{self.given}"}).encode()


def guarded(accepts: set[str], generation: str = "2025") -> Upstream:
    """A server that requires one of these tokens."""
    upstream = Upstream(generation, authorized=lambda header: header.removeprefix("Bearer ") in accepts)

    @upstream.tool("read")
    async def read(_call: Call) -> str:
        return "a note"

    return upstream


def config(issuer: Issuer, **auth: Any) -> dict[str, Any]:
    given = {"type": "client_credentials", "client_id": "gate", "client_secret": "s3cret-of-ours", **auth}
    return {"servers": {"notes": {"auth": {"issuer": issuer.url, **given}}}}


@virtual_time
async def test_a_server_gets_the_gateways_token_and_callers_never_see_it() -> None:
    accepts = {"token-1"}
    async with an_issuer() as issuer:
        tokens = TokenIssuer(issuer)
        notes = guarded(accepts)
        async with Gateway(config(issuer, scope="read write"), {"notes": notes}) as gate:
            caller = await gate.caller("2025")
            assert (await caller.call("notes__read")).text == "a note"
            assert tokens.given == 1
            (form,) = tokens.forms
            assert form["grant_type"] == ["client_credentials"]
            assert form["scope"] == ["read write"]
            assert form["resource"][0].startswith("http://")
            seen = f"{gate.log} {(await gate.operator('GET', '/api/v1/tasks')).body!r}"
            assert "token-1" not in seen
            assert "s3cret-of-ours" not in seen


@virtual_time
async def test_fifty_callers_with_a_revoked_token_cause_one_new_token() -> None:
    accepts = {"token-1"}
    async with an_issuer() as issuer:
        tokens = TokenIssuer(issuer, lifetime_s=3600)
        async with Gateway(config(issuer), {"notes": guarded(accepts)}) as gate:
            callers = [await gate.caller("2025") for _ in range(50)]
            assert (await callers[0].call("notes__read")).text == "a note"
            accepts.clear()
            accepts.add("token-2")
            replies = await asyncio.gather(*(caller.call("notes__read") for caller in callers))
            assert [reply.text for reply in replies] == ["a note"] * 50
            assert tokens.given == 2


@virtual_time
async def test_a_late_refusal_does_not_cause_another_token() -> None:
    async with an_issuer() as issuer, httpx2.AsyncClient(trust_env=False) as client:
        tokens = TokenIssuer(issuer)
        settings = ClientCredentials("notes", "http://127.0.0.1:1/mcp", "gate", "secret", issuer.url)
        kept = LoginStore(FileRows(Path("/nonexistent")), b"k" * 32)
        assertions = Assertions(b"k" * 32, lambda: "https://gate.example")
        mine = ServerTokens(settings, TokenDeps(lambda *_: Documents(lambda: client), kept, assertions))
        await mine.ready()
        first = mine.headers
        assert await mine.renew(first)
        assert await mine.renew(first), "what was refused is not in use any more"
        assert tokens.given == 2


@virtual_time
async def test_a_token_is_refreshed_in_the_background_before_it_expires() -> None:
    accepts = {"token-1"}
    async with an_issuer() as issuer:
        tokens = TokenIssuer(issuer, lifetime_s=100)
        async with Gateway(config(issuer), {"notes": guarded(accepts)}) as gate:
            caller = await gate.caller("2025")
            await caller.call("notes__read")
            await gate.advance(85)
            accepts.add("token-2")
            assert (await caller.call("notes__read")).text == "a note"
            await gate.advance(1)
            assert tokens.given == 2
            accepts.remove("token-1")
            assert (await caller.call("notes__read")).text == "a note"


@virtual_time
async def test_lists_of_a_stateless_server_refresh_a_revoked_token() -> None:
    accepts = {"token-1"}
    async with an_issuer() as issuer:
        tokens = TokenIssuer(issuer, lifetime_s=36_000)
        async with Gateway(
            {**config(issuer), "limits": {"list_max_age": "10s"}}, {"notes": guarded(accepts, "2026")}
        ) as gate:
            caller = await gate.caller("2026")
            assert await caller.tools()
            accepts.clear()
            accepts.add("token-2")
            before = len(gate.log)
            await gate.advance(300)
            assert tokens.given == 2, "the token was renewed before a call failed"
            assert [line for line in gate.log[before:] if "not listed" in line.event] == []
            assert (await caller.call("notes__read")).text == "a note"


@virtual_time
async def test_a_401_of_a_stateless_server_does_not_cause_a_2025_handshake() -> None:
    accepts = {"token-2"}
    async with an_issuer() as issuer:
        tokens = TokenIssuer(issuer, lifetime_s=36_000)
        notes = guarded(accepts, "2026")
        async with Gateway(config(issuer), {"notes": notes}) as gate:
            caller = await gate.caller("2026")
            assert (await caller.call("notes__read")).text == "a note"
            assert tokens.given == 2
            assert "initialize" not in notes.methods


@virtual_time
async def test_a_failing_issuer_is_reported_and_not_polled_in_a_loop() -> None:
    async with an_issuer() as issuer:
        tokens = TokenIssuer(issuer)
        tokens.refuses = True
        async with Gateway(config(issuer), {"notes": guarded({"token-1"})}) as gate:
            await gate.advance(1)
            caller = await gate.caller("2025")
            before = len(tokens.forms)
            reply = await caller.call("notes__read")
            data = reply.last["error"]["data"]
            assert (data["error_type"], data["executed"]) == ("upstream_unreachable", "no")
            assert len(tokens.forms) - before <= 3
            tokens.refuses = False
            await gate.advance(60)
            assert (await caller.call("notes__read")).text == "a note"


@virtual_time
async def test_a_stored_login_is_used_refreshed_and_stored(tmp_path: Path) -> None:
    accepts = {"from-the-browser"}
    async with an_issuer() as issuer:
        tokens = TokenIssuer(issuer)
        notes = guarded(accepts)
        given = {"servers": {"notes": {"auth": {"type": "authorization_code"}}}}
        async with Gateway(given, {"notes": notes}) as gate:
            caller = await gate.caller("2025")
            reply = await caller.call("notes__read")
            assert "taskgate servers login notes" in reply.last["error"]["message"]
            state = gate.life.app.loaded.state_dir
            logins = LoginStore(FileRows(state / "server-logins"), gateway_secret(state))
            logins.keep("notes", Login(issuer.url, "gate", "from-the-browser", "refresh-0"))
            assert b"from-the-browser" not in (state / "server-logins").read_bytes()
            await gate.advance(60)
            assert (await caller.call("notes__read")).text == "a note"
            accepts.clear()
            accepts.add("token-1")
            assert (await caller.call("notes__read")).text == "a note"
            assert tokens.forms[-1]["refresh_token"] == ["refresh-0"]
            kept = logins.load("notes")
            assert kept is not None
            assert (kept.access_token, kept.refresh_token) == ("token-1", "refresh-1")


def test_logins_of_another_installation_are_not_used(tmp_path: Path) -> None:
    file = tmp_path / "logins"
    LoginStore(FileRows(file), b"a" * 32).keep("notes", Login("https://i.example", "gate", "t", None))
    assert LoginStore(FileRows(file), b"a" * 32).load("notes") is not None
    assert LoginStore(FileRows(file), b"b" * 32).load("notes") is None
    assert file.stat().st_mode & 0o077 == 0
    assert LoginStore(FileRows(file), b"a" * 32).forget("notes")
    assert LoginStore(FileRows(file), b"a" * 32).load("notes") is None


@virtual_time
async def test_a_server_that_requires_no_login_is_used_without_one() -> None:
    open_to_all = Upstream("2025", authorized=lambda header: header == "")

    @open_to_all.tool("read")
    async def read(_call: Call) -> str:
        return "a note"

    given = {"servers": {"notes": {"auth": {"type": "authorization_code"}}}}
    async with Gateway(given, {"notes": open_to_all}) as gate:
        caller = await gate.caller("2025")
        assert (await caller.call("notes__read")).text == "a note"


class _ConnectedMeanwhile(LoginStore):
    """The shared account is connected while a gateway that found none looks for another account to use."""

    def of_server(self, server: str) -> dict[str, Login]:
        self.keep(server, Login("https://issuer.example", "gate", "just-connected", None))
        return super().of_server(server)


async def test_the_shared_account_can_be_connected_during_a_lookup(tmp_path: Path) -> None:
    kept = _ConnectedMeanwhile(FileRows(tmp_path / "logins"), b"k" * 32)
    mine = ServerTokens(StoredLogin("notes", "http://127.0.0.1:1/mcp", per_principal=True), _means(kept))
    async with asyncio.timeout(60):
        await mine.ready()
    assert mine.headers == ((b"authorization", b"Bearer just-connected"),)


class _HeldByAnother(LoginStore):
    """Another process has stopped while it held the lock of the file."""

    def __init__(self, rows: FileRows) -> None:
        super().__init__(rows, b"k" * 32)
        self.goes_on = threading.Event()

    def load(self, server: str, principal: str = "") -> Login | None:
        self.goes_on.wait()
        return super().load(server, principal)


async def test_reading_a_login_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_tokens, "FETCH_S", 0.05)
    kept = _HeldByAnother(FileRows(tmp_path / "logins"))
    mine = ServerTokens(StoredLogin("notes", "http://127.0.0.1:1/mcp", per_principal=True), _means(kept))
    try:
        with pytest.raises(LoginNeeded):
            async with asyncio.timeout(60):
                await mine.ready()
    finally:
        kept.goes_on.set()
    kept.keep("notes", Login("https://issuer.example", "gate", "there-now", None))
    monkeypatch.undo()
    await mine.ready()
    assert mine.headers == ((b"authorization", b"Bearer there-now"),)


def _means(kept: LoginStore) -> TokenDeps:
    """Dependencies for tests without requests to an issuer."""
    return TokenDeps(
        lambda *_: Documents(httpx2.AsyncClient), kept, Assertions(b"k" * 32, lambda: "https://gate.example")
    )
