"""Login with an OpenID Connect provider, and errors and attacks of a browser, a provider or a man in the middle."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from tests.identity.issuer import OTHER_RSA, Issuer, an_issuer
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate import clock


@dataclass
class Provider:
    """The issuer as an OpenID provider that logs every user in; `claims` changes the claims."""

    issuer: Issuer
    groups: list[str] = field(default_factory=lambda: ["oncall"])
    claims: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    key: Any = None
    forms: list[dict[str, str]] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)

    def install(self) -> None:
        self.issuer.pages["/token"] = self.token
        plain = self.issuer.metadata()

        def metadata(_: bytes) -> tuple[int, bytes]:
            ends = {
                "authorization_endpoint": f"{self.issuer.url}/authorize",
                "token_endpoint": f"{self.issuer.url}/token",
            }
            return 200, json.dumps({**plain, **ends, **self.metadata}).encode()

        self.issuer.pages["/.well-known/openid-configuration"] = metadata

    def authorize(self, location: str) -> dict[str, str]:
        """What the browser brings back from the provider."""
        address = urlsplit(location)
        assert address.path == "/authorize"
        self.asked = {name: values[0] for name, values in parse_qs(address.query).items()}
        return {"code": "the-code", "state": self.asked["state"], "iss": self.issuer.url}

    def token(self, body: bytes) -> tuple[int, bytes]:
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        self.forms.append(form)
        challenge = hashlib.sha256(form.get("code_verifier", "").encode()).digest()

        if base64.urlsafe_b64encode(challenge).decode().rstrip("=") != self.asked["code_challenge"]:
            return 400, b'{"error":"invalid_grant"}'
        payload = {
            "aud": "console",
            "nonce": self.asked["nonce"],
            "groups": self.groups,
            "auth_time": int(clock.wall()),
        }
        more = {"key": self.key} if self.key is not None else {}
        return 200, json.dumps({"id_token": self.issuer.token(**more, **{**payload, **self.claims})}).encode()


def config(issuer: Issuer) -> dict[str, Any]:
    login = {"issuer": issuer.url, "client_id": "console", "roles": {"approver": ["oncall"], "admin": ["root"]}}
    return {
        "tokens": [{"id": "agent", "sha256": hashlib.sha256(b"agent-token").hexdigest()}],
        "auth": {"login": login},
        "governance": {"rules": [{"match": "pay", "action": "approve", "approval": "money"}]},
        "approval": {"money": {"max_auth_age": "5m"}},
    }


def upstream() -> Upstream:
    server = Upstream("2025")

    @server.tool("pay")
    async def pay(call: Call) -> str:
        return "paid"

    return server


async def log_in(gate: Gateway, provider: Provider, query: str = "") -> tuple[httpx2.AsyncClient, httpx2.Response]:
    browser = httpx2.AsyncClient(base_url=gate.base, follow_redirects=False, timeout=600)
    sent = await browser.get(f"/login/oidc{query}")
    assert sent.status_code == 303, sent.text
    answer = provider.authorize(sent.headers["location"])
    return browser, await browser.get("/login/callback", params=answer)


@virtual_time
async def test_a_user_logs_in_decides_after_a_fresh_login_and_logs_out_everywhere() -> None:
    async with an_issuer() as issuer:
        provider = Provider(issuer)
        provider.install()
        async with Gateway(config(issuer), {"s": upstream()}) as gate:
            assert 'id="provider"' in (await httpx2.AsyncClient().get(f"{gate.base}/login")).text
            browser, landed = await log_in(gate, provider, "?next=/grants")
            assert landed.status_code == 200
            assert landed.headers["refresh"] == "0; url=/grants"
            assert provider.asked["code_challenge_method"] == "S256"
            assert (await browser.get("/grants")).status_code == 200
            caller = await gate.caller("2025", token="agent-token")
            calling = caller.begin_call("s__pay")
            await gate.advance(400)
            (row,) = (await browser.get("/api/v1/approvals")).json()
            card = f"/approvals/{row['id']}"
            page = (await browser.get(card)).text
            token = page.partition('name="form_token" value="')[2].partition('"')[0]
            form = {"form_token": token, "digest": row["arguments_digest"]}
            stale = await browser.post(f"{card}/approve", data=form)
            assert stale.status_code == 303
            assert stale.headers["location"] == f"/login?fresh=1&next={card}"
            again = await browser.get(stale.headers["location"])
            assert 'id="fresh"' in again.text
            sent = await browser.get("/login/oidc", params={"fresh": "1", "next": card})
            answer = provider.authorize(sent.headers["location"])
            assert (provider.asked["max_age"], provider.asked["prompt"]) == ("0", "login")
            back = await browser.get("/login/callback", params=answer)
            assert back.headers["refresh"] == f"0; url={card}"
            page = (await browser.get(card)).text
            token = page.partition('name="form_token" value="')[2].partition('"')[0]
            assert (await browser.post(f"{card}/approve", data={**form, "form_token": token})).status_code == 303
            assert calling.is_done
            assert (await browser.get("/api/v1/approvals?all=1")).json()[0]["state"] in ("approved", "used")
            other, _ = await log_in(gate, provider)
            token = (await browser.get("/grants")).text.partition('name="form_token" value="')[2].partition('"')[0]
            assert (await other.get("/grants")).status_code == 200
            await browser.post("/logout", data={"form_token": token, "everywhere": "1"})
            assert (await other.get("/grants")).status_code == 303


@virtual_time
async def test_a_session_survives_a_restart_and_ends_when_the_provider_gives_other_groups() -> None:
    async with an_issuer() as issuer:
        provider = Provider(issuer)
        provider.install()
        async with Gateway(config(issuer), {"s": upstream()}) as gate:
            browser, _ = await log_in(gate, provider)
            await gate.restart()
            assert (await browser.get("/grants")).status_code == 200
            provider.groups = ["nothing"]
            again, _ = await log_in(gate, provider)
            assert (await browser.get("/grants")).status_code == 303
            assert (await again.get("/grants")).status_code == 403


Twist = Callable[[Provider, dict[str, str]], object]
HOSTILE: dict[str, Twist] = {
    "another state": lambda p, a: a.update(state="x"),
    "no state": lambda p, a: a.pop("state"),
    "another issuer": lambda p, a: a.update(iss="https://evil.test"),
    "no issuer where one is promised": lambda p, a: a.pop("iss"),
    "an error": lambda p, a: a.update(error="access_denied"),
    "no code": lambda p, a: a.pop("code"),
    "an endless code": lambda p, a: a.update(code="x" * 5000),
    "another nonce": lambda p, a: p.claims.update(nonce="x"),
    "no nonce": lambda p, a: p.claims.update(nonce=None),
    "another audience": lambda p, a: p.claims.update(aud="other"),
    "another client": lambda p, a: p.claims.update(azp="other"),
    "another key": lambda p, a: setattr(p, "key", OTHER_RSA),
    "expired": lambda p, a: p.claims.update(exp=1),
    "no subject": lambda p, a: p.claims.update(sub=None),
    "issued by another issuer": lambda p, a: p.claims.update(iss="https://evil.test"),
    "another verifier": lambda p, a: p.asked.update(code_challenge="x"),
}


@pytest.mark.parametrize("name", HOSTILE)
@virtual_time
async def test_a_mismatching_login_response_is_refused(name: str) -> None:
    async with an_issuer() as issuer:
        provider = Provider(issuer, metadata={"authorization_response_iss_parameter_supported": True})
        provider.install()
        async with Gateway(config(issuer), {"s": upstream()}) as gate:
            browser = httpx2.AsyncClient(base_url=gate.base, follow_redirects=False, timeout=600)
            sent = await browser.get("/login/oidc")
            answer = provider.authorize(sent.headers["location"])
            HOSTILE[name](provider, answer)
            refused = await browser.get("/login/callback", params=answer)
            assert refused.status_code == 403
            assert "taskgate_session" not in str(refused.headers)
            assert (await browser.get("/grants")).status_code == 303
            assert "the-code" not in refused.text


@virtual_time
async def test_a_login_from_another_browser_late_or_with_an_old_verifier_is_refused() -> None:
    async with an_issuer() as issuer:
        provider = Provider(issuer)
        provider.install()
        async with Gateway(config(issuer), {"s": upstream()}) as gate:
            browser = httpx2.AsyncClient(base_url=gate.base, follow_redirects=False, timeout=600)
            unauthorized = httpx2.AsyncClient(base_url=gate.base, follow_redirects=False, timeout=600)
            sent = await browser.get("/login/oidc?next=https://evil.test/")
            answer = provider.authorize(sent.headers["location"])
            assert (await unauthorized.get("/login/callback", params=answer)).status_code == 403
            landed = await browser.get("/login/callback", params=answer)
            assert "evil" not in landed.headers["refresh"]
            sent = await browser.get("/login/oidc")
            answer = provider.authorize(sent.headers["location"])
            await gate.advance(601)
            assert (await browser.get("/login/callback", params=answer)).status_code == 403
            provider.claims = {"auth_time": int(clock.wall()) - 3600}
            sent = await browser.get("/login/oidc?fresh=1")
            answer = provider.authorize(sent.headers["location"])
            refused = await browser.get("/login/callback", params=answer)
            assert refused.status_code == 403
            assert "new login" in refused.text
            issuer.silent = True
            await gate.advance(700)
            assert (await browser.get("/login/oidc")).status_code == 403
