"""Tampered logins: states, browsers, issuers, codes, addresses. No account is connected, and nothing is fetched."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.identity.accounts import Browser, LoginIssuer, Notes, config, page_for
from tests.identity.issuer import Issuer, an_issuer
from tests.virtual_time import Gateway, virtual_time

from taskgate.identity.discovery import authority_of, protected_resource
from taskgate.identity.documents import Documents, GuardedDocuments, IssuerRefused
from taskgate.ports.caller_credentials import IssuerUnavailable


async def accounts(gate: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((await gate.operator("GET", "/api/v1/servers/notes/accounts")).body)[
        "accounts"
    ]
    return found


@virtual_time
async def test_answers_that_do_not_belong_to_a_login_connect_nothing() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        async with Gateway(config(issuer), {"notes": Notes(issuer).upstream()}) as gate:
            ann, mallory = await Browser(gate).log_in_as("ann"), await Browser(gate).log_in_as("bob")
            good = issuer.log_in(await ann.begin(await page_for(gate, "ann")), "ann-at-notes")
            bad = issuer.log_in(await mallory.begin(await page_for(gate, "bob")), "mallory-at-notes")
            for browser, query, why in (
                (ann, {}, b"has expired"),
                (ann, {**good, "state": "guessed"}, b"has expired"),
                # Each callback uses up its state, so each row has its own login.
                (mallory, bad | {"iss": "https://other.example"}, b"another issuer"),
            ):
                reply = await browser.come_back(query)
                assert reply.status == 400, reply.body
                assert why in reply.body
            assert await accounts(gate) == []
            for change, why in (
                ({"iss": None}, b"another issuer"),
                ({"code": None}, b"no code"),
                ({"code": "code-of-mallory"}, b"invalid_grant"),
                ({"error": "access_denied"}, b"access_denied"),
            ):
                browser = await Browser(gate).log_in_as("ann")
                query = issuer.log_in(await browser.begin(await page_for(gate, "ann")), "ann-at-notes")
                sent = {name: value for name, value in {**query, **change}.items() if value is not None}
                reply = await browser.come_back(sent)
                assert (reply.status, why in reply.body) == (400, True), reply.body
            # Another browser of the same person.
            stolen = issuer.log_in(await ann.begin(await page_for(gate, "ann")), "victim-at-notes")
            other = await Browser(gate).log_in_as("ann")
            await other.get(urlsplit(await page_for(gate, "ann")).path)
            assert (await other.come_back(stolen)).status == 400
            assert (await ann.come_back(stolen)).status == 400, "the state is used up"
            assert await accounts(gate) == []
            again = issuer.log_in(await ann.begin(await page_for(gate, "ann")), "ann-at-notes")
            assert (await ann.come_back(again)).status == 200
            assert (await ann.come_back(again)).status == 400, "a state is good once"


@virtual_time
async def test_a_code_of_another_login_is_refused() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        async with Gateway(config(issuer), {"notes": Notes(issuer).upstream()}) as gate:
            ann, mallory = await Browser(gate).log_in_as("ann"), await Browser(gate).log_in_as("bob")
            hers = issuer.log_in(await ann.begin(await page_for(gate, "ann")), "ann-at-notes")
            his = issuer.log_in(await mallory.begin(await page_for(gate, "bob")), "mallory-at-notes")
            reply = await ann.come_back({**hers, "code": his["code"]})
            assert (reply.status, b"invalid_grant" in reply.body) == (400, True)
            assert await accounts(gate) == []


@virtual_time
async def test_the_redirect_target_does_not_come_from_the_request() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        async with Gateway(config(issuer), {"notes": Notes(issuer).upstream()}) as gate:
            page = await page_for(gate, "ann")
            asked = await (await Browser(gate).log_in_as("ann")).begin(
                f"{page}?next=https://evil.example&redirect_uri=https://evil.example"
            )
            assert asked.startswith(f"{issuer.url}/authorize?")
            assert "evil" not in asked
            for path in ("/oauth/connect/guessed", "/oauth/connect/", "/oauth/callback?next=https://evil.example"):
                reply = await Browser(gate).get(path)
                assert reply.status in (303, 401, 404)
                assert reply.headers.get("location", "/login").startswith("/login")
                assert b"evil" not in reply.body
            cross_site = {"origin": "https://evil.example", "content-type": "application/x-www-form-urlencoded"}
            path = "/" + page.split("/", 3)[3]
            assert (await gate.http("POST", path, body=b"", headers=cross_site).done()).status == 403


@virtual_time
async def test_issuers_with_inconsistent_or_insecure_metadata_are_refused() -> None:
    async with an_issuer() as served:
        issuer = LoginIssuer(served)
        good = dict(issuer.metadata)
        async with Gateway(config(issuer), {"notes": Notes(issuer).upstream()}) as gate:
            for change, why in (
                ({"registration_endpoint": "http://169.254.169.254/latest"}, b"not a safe address"),
                ({"registration_endpoint": None}, b"client_id"),
                ({"issuer": "https://other.example"}, b"another issuer"),
                ({"code_challenge_methods_supported": ["plain"]}, b"PKCE"),
                ({"code_challenge_methods_supported": None}, b"PKCE"),
                ({"authorization_endpoint": "javascript:alert(1)"}, b"not a safe address"),
                ({"authorization_endpoint": "http://login.example/authorize"}, b"not a safe address"),
                ({"authorization_endpoint": "https://ann@login.example/authorize"}, b"not a safe address"),
                ({"authorization_endpoint": 7}, b"authorization_endpoint"),
            ):
                issuer.metadata = {**good, **change}
                path = "/" + (await page_for(gate, "ann")).split("/", 3)[3]
                browser = await Browser(gate).log_in_as("ann")
                reply = await browser.press(path, await browser.get(path))
                assert (reply.status, why in reply.body) == (502, True), (change, reply.body)
            issuer.metadata = {**good, "token_endpoint": "http://10.0.0.1/token"}
            browser = await Browser(gate).log_in_as("ann")
            reply = await browser.connect(await page_for(gate, "ann"), issuer, "ann")
            assert (reply.status, b"not a safe address" in reply.body) == (400, True)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://other.example/keys", "https is required"),
        ("https://127.0.0.1/keys", "private network"),
        ("https://[::1]/keys", "private network"),
        ("https://localhost/keys", "private network"),
        ("https://169.254.169.254/latest/meta-data", "private network"),
        ("https://10.1.2.3/", "private network"),
        ("https://192.168.0.1/", "private network"),
        ("https://[::ffff:127.0.0.1]/", "private network"),
        ("https://[fd00::1]/", "private network"),
        ("https://user@example.com/", "https is required"),
        ("file:///etc/passwd", "https is required"),
        ("gopher://example.com/", "https is required"),
    ],
)
async def test_addresses_from_a_servers_metadata_must_be_public(url: str, why: str) -> None:
    async with httpx2.AsyncClient(trust_env=False) as client:
        with pytest.raises(IssuerUnavailable, match=why):
            await GuardedDocuments(lambda: client, ["notes.example"]).get(url, "https://notes.example/mcp")


@virtual_time
async def test_metadata_that_redirects_or_is_huge_slow_or_malformed_is_refused() -> None:
    async with an_issuer() as served, httpx2.AsyncClient(trust_env=False) as client:
        documents = Documents(lambda: client)
        served.pages["/moved"] = lambda _: (302, b"{}")
        served.pages["/huge"] = lambda _: (200, b'{"a":"' + b"x" * 1_100_000 + b'"}')
        served.pages["/broken"] = lambda _: (200, b'{"a": 1, "a": 2}')
        served.pages["/no"] = lambda _: (400, b'{"error": "invalid_grant"}')
        for path, why in (("/moved", "status 302"), ("/huge", "more than"), ("/broken", "no valid JSON")):
            with pytest.raises(IssuerUnavailable, match=why):
                await documents.get(f"{served.url}{path}", served.url)
        with pytest.raises(IssuerRefused) as refused:
            await documents.get(f"{served.url}/no", served.url)
        assert refused.value.error == "invalid_grant"
        served.silent = True
        with pytest.raises(IssuerUnavailable, match="within 5 s"):
            await documents.get(f"{served.url}/keys", served.url)


def described(served: Issuer, **document: Any) -> str:
    served.pages["/.well-known/oauth-protected-resource/mcp"] = lambda _: (200, json.dumps(document).encode())
    return f"{served.url}/mcp"


@virtual_time
async def test_the_issuer_of_a_server_is_found_by_every_method_of_both_revisions() -> None:
    async with an_issuer() as served, httpx2.AsyncClient(trust_env=False) as client:
        documents = GuardedDocuments(lambda: client, ["127.0.0.1"])
        issuer = LoginIssuer(served)
        url = f"{served.url}/mcp"
        # 2025-03-26: no metadata, its origin is the issuer.
        assert (await protected_resource(url, None, documents)).issuer == issuer.url
        url = described(served, resource=url, authorization_servers=["https://first.example"], scopes_supported=["a"])
        found = await protected_resource(url, None, documents)
        assert (found.issuer, found.resource, found.scopes) == ("https://first.example", url, ("a",))
        # The operator's configuration has precedence.
        assert (await protected_resource(url, issuer.url, documents)).issuer == issuer.url
        described(served, resource="https://other.example/mcp", authorization_servers=[issuer.url])
        with pytest.raises(IssuerUnavailable, match=r"https://other\.example/mcp"):
            await protected_resource(url, None, documents)
        described(served, resource=url)
        with pytest.raises(IssuerUnavailable, match="`issuer`"):
            await protected_resource(url, None, documents)
        # RFC 8414, with a path.
        tenant = {**issuer.metadata, "issuer": f"{served.url}/tenant"}
        served.pages["/.well-known/oauth-authorization-server/tenant"] = lambda _: (200, json.dumps(tenant).encode())
        assert (await authority_of(f"{served.url}/tenant", documents)).issuer == f"{served.url}/tenant"
