"""Every address that the gateway serves is declared in one list, each with its access class."""

from __future__ import annotations

import pytest
from tests.console.actions import ACTIONS
from tests.virtual_time import Gateway, virtual_time

from taskgate.access.routes import DeclaredRoute, RouteKind, check_distinct
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission

PUBLIC = {
    "/health",
    "/healthz",
    "/ready",
    "/readyz",
    "/metrics",
    "/.well-known/oauth-protected-resource",
    "/.well-known/oauth-protected-resource/mcp",
    "/.well-known/oauth-protected-resource/mcp/{scope}",
    "/.well-known/jwks.json",
    "/oauth/client.json",
    "/static/{name}",
    "/login",
    "/login/oidc",
    "/login/callback",
    "/api/approvals/callback/{workflow}/{number}",
}
"""Addresses that need no credential. A new one must be added here on purpose."""


def test_a_route_cannot_be_declared_without_an_access_class() -> None:
    with pytest.raises(TypeError, match="access"):
        DeclaredRoute(method="GET", path="/x", kind=RouteKind.PAGE, summary="A page.")  # type: ignore[call-arg]


def test_every_permission_is_an_access_class() -> None:
    assert {access.permission for access in Access} == {*Permission, None}
    assert [access for access in Access if access.permission is None] == [Access.PUBLIC, Access.LOGIN, Access.CALL]


@virtual_time
async def test_every_route_is_declared_once_and_only_the_listed_ones_are_public() -> None:
    async with Gateway({}, {}) as gate:
        routes = gate.life.site.routes
        check_distinct(routes)
        assert all(isinstance(route.access, Access) for route in routes)
        assert {route.path for route in routes if route.access is Access.PUBLIC} == PUBLIC
        assert {route.path for route in routes if route.kind is RouteKind.MCP} == {"/mcp", "/mcp/{scope}"}
        assert {route.access for route in routes if route.kind is RouteKind.MCP} == {Access.CALL}
        changing = {route.kind for route in routes if route.method != "GET"}
        assert changing == {RouteKind.MCP, RouteKind.API, RouteKind.FORM, RouteKind.WEBHOOK}


@virtual_time
async def test_every_form_is_in_the_list_of_actions_that_a_browser_drives() -> None:
    async with Gateway({}, {}) as gate:
        forms = {route.path for route in gate.life.site.routes if route.kind is RouteKind.FORM}
    assert forms == set(ACTIONS)
