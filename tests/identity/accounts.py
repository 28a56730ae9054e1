"""For tests of accounts that people connect: an issuer with a login page, servers that distinguish tokens, and a browser."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.identity.issuer import Issuer
from tests.virtual_time import Call, Gateway, Reply, Upstream

from taskgate.core.identity.caller import OPERATOR


class LoginIssuer:
    """Issues codes after a login, tokens for codes with their verifier, and new tokens for refresh tokens."""

    def __init__(self, issuer: Issuer, lifetime_s: int = 3600) -> None:
        self.url = issuer.url
        self.lifetime_s = lifetime_s
        self.codes: dict[str, dict[str, str]] = {}
        self.good: dict[str, str] = {}
        """Access tokens, each with its login."""
        self.refresh: dict[str, str] = {}
        self.forms: list[dict[str, str]] = []
        self.scopes: dict[str, str] = {}
        self.revoked = False
        self.metadata: dict[str, Any] = {
            "issuer": issuer.url,
            "authorization_endpoint": f"{issuer.url}/authorize",
            "token_endpoint": f"{issuer.url}/token",
            "jwks_uri": f"{issuer.url}/keys",
            "registration_endpoint": f"{issuer.url}/register",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            "token_endpoint_auth_methods_supported": ["none"],
        }
        issuer.pages["/.well-known/openid-configuration"] = lambda _: (200, json.dumps(self.metadata).encode())
        issuer.pages["/token"] = self.token
        issuer.pages["/register"] = lambda _: (201, b'{"client_id": "registered"}')

    def log_in(self, address: str, login: str) -> dict[str, str]:
        """What the issuer sends the browser back with."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        code = f"code-{len(self.codes)}"
        self.codes[code] = {**asked, "login": login}
        return {"code": code, "state": asked["state"], "iss": self.url}

    def token(self, body: bytes) -> tuple[int, bytes]:
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        self.forms.append(form)
        if form["grant_type"] == "authorization_code":
            asked = self.codes.pop(form["code"], None)
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            if asked is None or asked["code_challenge"] != challenge:
                return 400, b'{"error": "invalid_grant"}'
            login, scope = asked["login"], asked.get("scope", "")
        else:
            login, scope = self.refresh.pop(form.get("refresh_token", ""), ""), ""
            if not login or self.revoked:
                return 400, b'{"error": "invalid_grant"}'
        number = len(self.forms)
        self.good[f"access-{login}-{number}"] = login
        self.refresh[f"refresh-{login}-{number}"] = login
        self.scopes[f"access-{login}-{number}"] = scope
        payload = {"access_token": f"access-{login}-{number}", "refresh_token": f"refresh-{login}-{number}"}
        return 200, json.dumps(
            {**payload, "token_type": "Bearer", "expires_in": self.lifetime_s, "scope": scope}
        ).encode()

    def end_tokens(self) -> None:
        """Invalidate all access tokens; refresh tokens stay valid."""
        self.good.clear()


@dataclass
class Notes:
    """A server that requires a token of the issuer and returns the name of the login."""

    issuer: LoginIssuer
    generation: str = "2025"
    ran_for: list[str] = field(default_factory=list)
    last: str = ""

    def upstream(self) -> Upstream:
        upstream = Upstream(self.generation, authorized=self._authorized)

        @upstream.tool("read")
        async def read(_call: Call) -> str:
            self.ran_for.append(self.last)
            return f"a note of {self.last}"

        return upstream

    def _authorized(self, header: str) -> bool:
        self.last = self.issuer.good.get(header.removeprefix("Bearer "), "")
        return bool(self.last)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def config(issuer: LoginIssuer, **auth: Any) -> dict[str, Any]:
    return {
        "tokens": [{"id": who, "sha256": digest(f"token-of-{who}")} for who in ("ann", "bob")],
        "servers": {"notes": {"auth": {"type": "authorization_code", "per_user": True, "issuer": issuer.url, **auth}}},
    }


@dataclass
class Browser:
    """One person's browser: it keeps cookies, each with its path and its rule for requests that come from other sites."""

    gate: Gateway
    cookies: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """By name: the value, the path, and `SameSite`."""

    async def get(self, path: str, *, from_elsewhere: bool = False) -> Reply:
        """`from_elsewhere`: the request comes from another site's link or redirect."""
        headers = self._headers(path, from_elsewhere=from_elsewhere)
        if from_elsewhere:
            headers["sec-fetch-site"] = "cross-site"
        return self._kept(await self.gate.http("GET", path, headers=headers).done())

    async def press(self, path: str, page: Reply | None = None, **values: str) -> Reply:
        """Send a form of the console, with the token on the page."""
        found = re.search(r'name="form_token" value="([^"]+)"', page.body.decode()) if page is not None else None
        body = urlencode({**values, **({"form_token": found[1]} if found is not None else {})}).encode()
        headers = {**self._headers(path), "content-type": "application/x-www-form-urlencoded"}
        return self._kept(await self.gate.http("POST", path, body=body, headers=headers).done())

    def _kept(self, reply: Reply) -> Reply:
        for header in reply.cookies:
            name, _, rest = header.partition("=")
            value, *attributes = [part.strip() for part in rest.split(";")]
            known = {key.lower(): given for key, _, given in (part.partition("=") for part in attributes)}
            self.cookies[name] = (value, known["path"], known["samesite"])
            if known.get("max-age") == "0":
                del self.cookies[name]
        return reply

    def _headers(self, path: str, *, from_elsewhere: bool = False) -> dict[str, str]:
        sent = [
            f"{name}={value}"
            for name, (value, under, rule) in self.cookies.items()
            if path.startswith(under) and not (from_elsewhere and rule == "Strict")
        ]
        return {"cookie": "; ".join(sent)} if sent else {}

    async def log_in(self, token: str) -> Browser:
        page = await self.get("/login")
        reply = await self.press("/login", page, token=token)
        assert reply.status == 303, reply.body
        return self

    async def log_in_as(self, who: str) -> Browser:
        """As a caller of `config`, or as the operator."""
        return await self.log_in(self.gate.operator_token if who == OPERATOR else f"token-of-{who}")

    async def begin(self, page: str) -> str:
        """Open the page and press its button: where the browser is sent."""
        path = urlsplit(page).path
        shown = await self.get(path)
        assert shown.status == 200, shown.body
        return led_to(await self.press(path, shown))

    async def begin_shared(self, server: str = "notes") -> str:
        """Press the button on the server's page in the console: where the browser is sent."""
        shown = await self.get(f"/servers/{server}")
        assert shown.status == 200, shown.body
        return led_to(await self.press(f"/servers/{server}/connect", shown))

    async def come_back(self, query: dict[str, str]) -> Reply:
        return await self.get(f"/oauth/callback?{urlencode(query)}", from_elsewhere=True)

    async def connect(self, page: str, issuer: LoginIssuer, login: str) -> Reply:
        return await self.come_back(issuer.log_in(await self.begin(page), login))


def led_to(reply: Reply) -> str:
    found = re.search(r'<a href="([^"]+)"', reply.body.decode())
    assert found is not None, reply.body
    return html.unescape(found[1])


async def page_for(gate: Gateway, principal: str) -> str:
    """The page that the operator gives to a caller's person."""
    reply = await gate.operator("POST", "/api/v1/servers/notes/accounts", {"principal": principal})
    assert reply.status == 201, reply.body
    return str(json.loads(reply.body)["url"])


async def connected(gate: Gateway, issuer: LoginIssuer, principal: str, login: str) -> Browser:
    """Connect an account for a caller as that caller's person, or the shared one (empty) as the operator."""
    browser = await Browser(gate).log_in_as(principal or OPERATOR)
    address = await (browser.begin(await page_for(gate, principal)) if principal else browser.begin_shared())
    done = await browser.come_back(issuer.log_in(address, login))
    assert done.status == 200, done.body
    return browser
