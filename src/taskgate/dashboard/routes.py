"""The routes of pages and the JSON API: declaration, handler, and what goes in and out.

A request that matches no route gets 404; the access class of its route is checked before the handler runs.
`/api/v1/openapi.json` is generated from the same table.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from taskgate.access.authorize import Authorized
from taskgate.access.routes import DeclaredRoute, RouteKind, check_distinct
from taskgate.core.errors import CallerError
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access
from taskgate.core.identity.roles import Permission
from taskgate.dashboard.navigation import Page
from taskgate.dashboard.web import Answer, EventAnswer, WebRequest

Schema = Mapping[str, Any]

OBJECT: Final[Schema] = {"type": "object"}
TEXT: Final[Schema] = {"type": "string"}


def refusal(needs: Permission) -> str:
    return (
        f"Permission denied: this requires a role with the permission `{needs.value}`. Use a token or login with such a role; the "
        "operator assigns roles in the configuration (`roles` of a token)."
    )


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """One authorized request, with the values of the placeholders in its path."""

    request: WebRequest
    person: Approver | None
    """The holder of the credential; None on public routes, and for anonymous callers where the route serves them."""
    values: Mapping[str, str]
    authorized: Authorized
    """The credential, scope and permissions that it was authorized with."""
    version: str
    """Version of the data that pages show, taken before the handler reads any of it."""

    @property
    def user(self) -> Approver:
        """The person, on routes that require a login."""
        assert self.person is not None
        return self.person

    @property
    def only(self) -> str | None:
        """The only principal whose data this person may see, or None for all principals."""
        return None if self.user.may(Permission.SEE) else self.user.id

    def parameter(self, name: str) -> str | None:
        """A query parameter; None if it is missing or empty, as forms send it."""
        return self.request.query.get(name, "").strip() or None


class LoginCookie(StrEnum):
    CONSOLE = "console"
    """The session cookie of the console. It is Strict: browsers do not send it when another site leads here."""
    CONNECT = "connect"
    """The same session, for `/oauth` only. It is Lax, so that it comes back from a server's login."""


Handler = Callable[[Visit], Awaitable[Answer | EventAnswer]]


class Route(DeclaredRoute, frozen=True, kw_only=True):
    handler: Handler
    query: Mapping[str, str] = {}
    """Parameters of the address, and what each is for."""
    body: Schema | None = None
    answer: Any = dict[str, Any]
    """The type of the reply."""
    status: int = 200
    stream: bool = False
    """Whether the answer is a stream of events."""
    cookie: LoginCookie = LoginCookie.CONSOLE
    """The cookie that proves a login on this route."""
    command: str = ""
    """The command that does the same, with the parameters of the path in braces. Pages show it; OpenAPI has it as `x-command`."""
    page: Page | None = None
    """Of a page that has a title of its own: how the menu and the footer show it."""
    scope: Callable[[WebRequest], str | None] | None = None
    """For class `call`: the scope that a request names; None: the one its credential is bound to, or the default one."""

    def __post_init__(self) -> None:
        if (self.access is Access.CALL) != (self.scope is not None):
            raise ValueError(f"{self.method} {self.path}: a route of class call, and no other, needs `scope`")

    def named_scope(self, request: WebRequest) -> str:
        """The scope that a request names; empty if it names none or its body is invalid, which the handler reports."""
        if self.scope is None:
            return ""
        try:
            return self.scope(request) or ""
        except (ValueError, CallerError):
            return ""


class Found(msgspec.Struct, frozen=True):
    route: Route
    values: Mapping[str, str]


class RouteTable:
    """Finds the route of a request. Fixed parts of a path take precedence over placeholders."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(sorted(routes, key=lambda route: [part.startswith("{") for part in route.parts]))
        check_distinct(self.routes)
        self._by_length: dict[tuple[str, int], list[Route]] = {}
        for route in self.routes:
            self._by_length.setdefault((route.method, len(route.parts)), []).append(route)
        self.pages = {route.page.name: route for route in self.routes if route.page is not None}
        """Routes of the pages with a title of their own, by name."""

    def find(self, method: str, path: str) -> Found | None:
        parts = tuple(part for part in path.split("/") if part)
        for route in self._by_length.get((method, len(parts)), ()):
            values = route.fits(parts)
            if values is not None:
                return Found(route, values)
        return None

    def command(self, method: str, path: str, **values: str) -> str:
        """The command that mirrors a declared route, with these values for its placeholders; empty where there is none."""
        route = next((route for route in self.routes if (route.method, route.path) == (method, path)), None)
        if route is None:
            raise LookupError(f"{method} {path} is not declared")
        return route.command.format(**{name: shlex.quote(value) for name, value in values.items()})


def closed_object(required: Iterable[str] = (), **properties: Schema) -> Schema:
    """The schema of a body that holds these keys and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def get(path: str, access: Access, handler: Handler, summary: str, **more: Any) -> Route:
    """Declare a GET route of the API."""
    return _api("GET", path, access, handler, summary, **more)


def post(path: str, access: Access, handler: Handler, summary: str, body: Schema, **more: Any) -> Route:
    """Declare a POST route of the API."""
    return _api("POST", path, access, handler, summary, body=body, **more)


def delete(path: str, access: Access, handler: Handler, summary: str, **more: Any) -> Route:
    """Declare a DELETE route of the API."""
    return _api("DELETE", path, access, handler, summary, **more)


def _api(method: str, path: str, access: Access, handler: Handler, summary: str, **more: Any) -> Route:
    return Route(
        method=method,
        path=f"/api/v1{path}",
        access=access,
        kind=RouteKind.API,
        handler=handler,
        summary=summary,
        **more,
    )


def page_route(path: str, access: Access, handler: Handler, summary: str = "A page.", **more: Any) -> Route:
    page = RouteKind.PAGE
    return Route(method="GET", path=path, access=access, kind=page, handler=handler, summary=summary, **more)


def form_route(path: str, access: Access, handler: Handler, summary: str = "A form.", **more: Any) -> Route:
    """The target of a form on a page; its `form_token` is checked before the handler runs."""
    form = RouteKind.FORM
    return Route(method="POST", path=path, access=access, kind=form, handler=handler, summary=summary, **more)
