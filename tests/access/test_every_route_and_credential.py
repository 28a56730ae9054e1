"""Every declared route with every kind of credential. A new route is tested here automatically. The permissions of each kind
of credential are listed below by access class and scope, independently of the code that decides.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.access.config_tokens import bearer, token
from tests.console.test_console_pages import form_token
from tests.identity.issuer import Issuer, an_issuer
from tests.virtual_time import Gateway, Reply, Upstream, virtual_time

from taskgate import clock
from taskgate.access.routes import DeclaredRoute, RouteKind
from taskgate.core.identity.access import Access, AccessRefusal
from taskgate.dashboard.routes import LoginCookie, Route
from taskgate.store.operations.audit import AuditRows

BASE = "http://127.0.0.1:7467"
DEFAULT, DEPLOY = "default", "deploy"
SEE = {Access.LOGIN, Access.SEE}
DECIDE = SEE | {Access.DECIDE}
ACT = DECIDE | {Access.ACT}
ALL = ACT | {Access.CONFIGURE}


@dataclass(frozen=True)
class Kind:
    """A kind of credential: the classes of routes and the scopes that it opens."""

    classes: frozenset[Access] = frozenset()
    scopes: frozenset[str] = frozenset()
    can_log_in: bool = True
    """Whether its holder can have a session of the console."""


def kind(*classes: Access, scopes: tuple[str, ...] = (DEFAULT, DEPLOY), can_log_in: bool = True) -> Kind:
    return Kind(frozenset(classes), frozenset(scopes), can_log_in)


KINDS: dict[str, Kind] = {
    "none": kind(scopes=(), can_log_in=False),
    "wrong": kind(scopes=(), can_log_in=False),
    "expired": kind(scopes=()),
    "revoked": kind(scopes=()),
    "for another resource": kind(scopes=(), can_log_in=False),
    "for one scope": kind(scopes=(DEPLOY,), can_log_in=False),
    "caller": kind(Access.LOGIN),
    "bound to a scope": kind(Access.LOGIN, scopes=(DEPLOY,)),
    "may not call": kind(*DECIDE, scopes=()),
    "viewer": kind(*SEE),
    "approver": kind(*DECIDE),
    "operator": kind(*ACT),
    "admin": kind(*ALL),
    "admin of a tenant": kind(*ALL),
    "person of an issuer": kind(*ALL, scopes=(DEFAULT,)),
}


def config(issuer: Issuer) -> dict[str, Any]:
    soon = datetime.fromtimestamp(clock.wall() + 100, UTC).isoformat()
    return {
        "tokens": [
            token("caller"),
            token("revoked", "admin"),
            token("expired", "admin", expires=soon),
            token("bound", scope=DEPLOY),
            token("no-calls", "approver", may_call=False),
            token("viewer", "viewer"),
            token("approver", "approver"),
            token("boss", "operator"),
            token("root", "admin"),
            token("tenant-root", "admin", tenant="acme"),
        ],
        "auth": {"jwt": [{"issuer": issuer.url, "roles": {"admin": ["root"]}}]},
        "scopes": {DEFAULT: {"default_servers": ["*"]}, DEPLOY: {"default_servers": ["*"]}},
    }


def secrets_of(issuer: Issuer) -> dict[str, str]:
    """The secret that the holder of each kind sends."""
    lasting: dict[str, Any] = {"exp": int(clock.wall()) + 3600, "groups": ["root"]}
    return {
        "none": "",
        "wrong": "guess",
        "expired": "expired-token",
        "revoked": "revoked-token",
        "for another resource": issuer.token(aud="https://other.example/mcp", **lasting),
        "for one scope": issuer.token(aud=f"{BASE}/mcp/{DEPLOY}", **lasting),
        "caller": "caller-token",
        "bound to a scope": "bound-token",
        "may not call": "no-calls-token",
        "viewer": "viewer-token",
        "approver": "approver-token",
        "operator": "boss-token",
        "admin": "root-token",
        "admin of a tenant": "tenant-root-token",
        "person of an issuer": issuer.token(aud=f"{BASE}/mcp", **lasting),
    }


@dataclass
class Visitor:
    """The holder of one kind of credential: the header of scripts, and the cookie of a browser that logged in with it."""

    gate: Gateway
    secret: str
    cookie: str = ""

    async def log_in(self) -> int:
        page = (await self.gate.http("GET", "/login").done()).body.decode()
        reply = await self._post("/login", {"token": self.secret, "form_token": form_token(page)})
        if reply.status == 303:
            self.cookie = reply.headers["set-cookie"].split(";")[0]
        return reply.status

    async def ask(self, route: DeclaredRoute, scope: str) -> Reply:
        path = re.sub(r"{\w+}", scope if route.kind is RouteKind.MCP else "none", route.path)
        if route.kind in (RouteKind.PAGE, RouteKind.FORM):
            return await self._open_page(route, path, scope)
        headers = bearer(self.secret) if self.secret else {}
        body: Any = None
        if route.access is Access.CALL and route.kind is RouteKind.API:
            path, body = (f"{path}?scope={scope}", None) if route.method == "GET" else (path, {"scope": scope})
        elif route.method == "POST":
            body = {}
        asked = self.gate.http(route.method, path, body, {"accept": "application/json", **headers})
        head = await asked.head()
        if head.headers.get("content-type") == "text/event-stream":
            await asked.disconnect()
            return head
        return await asked.done()

    async def _open_page(self, route: DeclaredRoute, path: str, scope: str) -> Reply:
        if route.method == "GET":
            asked = f"{path}?scope={scope}" if route.access is Access.CALL else path
            return await self.gate.http("GET", asked, headers={"cookie": self._cookie_for(route)}).done()
        value = self.cookie.partition("=")[2]
        guard = self.gate.life.dashboard.login.form_token(value or None)
        return await self._post(path, {"form_token": guard, "scope": scope})

    def _cookie_for(self, route: DeclaredRoute) -> str:
        """The cookie that proves the login on this route."""
        assert isinstance(route, Route)
        if route.cookie is LoginCookie.CONSOLE:
            return self.cookie
        made = self.gate.life.dashboard.login.connect_cookie(self.cookie.partition("=")[2])
        return "" if made is None else made[1].decode().split(";")[0]

    async def _post(self, path: str, form: dict[str, str]) -> Reply:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        if self.cookie:
            headers["cookie"] = self.cookie
        return await self.gate.http("POST", path, urlencode(form).encode(), headers).done()


@asynccontextmanager
async def visitors_of_each_kind() -> AsyncIterator[tuple[Gateway, dict[str, Visitor]]]:
    async with an_issuer() as issuer, Gateway(config(issuer), {"s": Upstream("2025")}) as gate:
        visitors = {name: Visitor(gate, secret) for name, secret in secrets_of(issuer).items()}
        for name, visitor in visitors.items():
            if name != "none":
                assert (await visitor.log_in() == 303) == KINDS[name].can_log_in, name
        assert (await gate.operator("POST", "/api/v1/tokens/revoke", {"name": "revoked"})).status == 200
        await gate.advance(101)
        yield gate, visitors


def was_refused(reply: Reply, route: DeclaredRoute) -> bool:
    """Refused by the access check, not by the route's handler."""
    if route.kind in (RouteKind.PAGE, RouteKind.FORM):
        if "set-cookie" in reply.headers:
            return False  # Logged out.
        return reply.headers.get("location", "").startswith("/login") or (
            reply.status in (401, 403, 404) and (reply.status == 401 or b"data-reason=" in reply.body)
        )
    if route.kind is RouteKind.MCP:
        return reply.status in (401, 403) or (reply.status == 404 and b"There is nothing at this address" in reply.body)
    data = reply.json() if reply.headers.get("content-type") == "application/json" else {}
    return type(data) is dict and data.get("reason") in set(AccessRefusal)


def may(kind: Kind, route: DeclaredRoute, scope: str) -> bool:
    if route.kind in (RouteKind.PAGE, RouteKind.FORM) and not kind.can_log_in:
        return False
    return scope in kind.scopes if route.access is Access.CALL else route.access in kind.classes


LAST = ("/api/v1/system/reload", "/system/reload", "/logout")
"""They change what the other rows of the table are about, so they are tried last, in this order."""


@pytest.mark.parametrize("name", KINDS)
@virtual_time
async def test_every_route_opens_to_the_credentials_of_its_class_and_to_no_others(name: str) -> None:
    async with visitors_of_each_kind() as (gate, visitors):
        visitor, tried = visitors[name], 0
        routes = [route for route in gate.life.site.routes if route.access is not Access.PUBLIC]
        routes.sort(key=lambda route: LAST.index(route.path) if route.path in LAST else -1)
        for route in routes:
            scopes = (DEFAULT, DEPLOY) if route.access is Access.CALL else ("",)
            if route.path == "/mcp":
                scopes = (DEFAULT,)
            for scope in scopes:
                if route.path == "/mcp" and name == "bound to a scope":
                    continue  # At the bare address it is served in its own scope.
                tried += 1
                if tried % 50 == 0:
                    await gate.advance(61)  # At most sixty wrong tokens per minute are examined.
                reply = await visitor.ask(route, scope)
                seen = (name, route.method, route.path, scope, reply.status, reply.body[:200])
                assert reply.status < 500, seen
                assert was_refused(reply, route) is not may(KINDS[name], route, scope), seen
                if not KINDS[name].classes and not KINDS[name].scopes:
                    assert reply.status in (401, 303), seen
        assert tried > 80


@virtual_time
async def test_the_credential_kinds_have_different_permissions() -> None:
    """Each access class is open to some kinds of credentials and closed to others."""
    for access in Access:
        if access not in (Access.PUBLIC, Access.CALL):
            assert 0 < sum(access in one.classes for one in KINDS.values()) < len(KINDS)
    for scope in (DEFAULT, DEPLOY):
        assert 0 < sum(scope in one.scopes for one in KINDS.values()) < len(KINDS)


@virtual_time
async def test_public_routes_need_no_credential_and_examine_none() -> None:
    """Except `/ready` and `/metrics`, which name servers to those who may see them, unless everybody does."""
    async with an_issuer() as issuer, Gateway({**config(issuer), "telemetry": {"names": "all"}}, {}) as gate:
        for route in gate.life.site.routes:
            if route.access is Access.PUBLIC and route.kind is not RouteKind.WEBHOOK and route.method == "GET":
                path = re.sub(r"{\w+}", "none", route.path)
                for headers in ({}, bearer("guess")):
                    reply = await gate.http("GET", path, headers=headers).done()
                    assert reply.status not in (401, 403, 429, 500), (path, reply.status)
        await gate.advance(2)
        assert not [
            row for row in await gate.life.app.store.ask(AuditRows(0, 50)) if row.entry.event.startswith("auth")
        ]
