"""Route declarations: method, path, purpose and access class. Every route of the gateway is declared.

The declarations are the source of the OpenAPI document and of the tests that try each route with each kind of
credential. The access class has no default, so a route cannot be declared without one.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import cache

import msgspec

from taskgate.core.identity.access import Access


class RouteKind(StrEnum):
    """The kind of client of a route. It determines the format of errors and the protection against cross-site requests."""

    MCP = "mcp"
    API = "api"
    """JSON for scripts. Changes made with a session cookie need the header `x-form-token`."""
    PAGE = "page"
    """HTML for people."""
    FORM = "form"
    """The target of a form on a console page, which sends the field `form_token`."""
    WEBHOOK = "webhook"
    """A message from another service, which its handler verifies by signature."""
    DOCUMENT = "document"
    """A fixed document for machines, or a file that pages load."""
    PROBE = "probe"


class DeclaredRoute(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    """A segment in braces matches any one segment."""
    access: Access
    kind: RouteKind
    summary: str
    anonymous: bool = False
    """Whether callers without a credential are served, if the gateway allows them at all."""

    @property
    def parts(self) -> tuple[str, ...]:
        return _parts(self.path)

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(part[1:-1] for part in self.parts if part.startswith("{"))

    def fits(self, parts: tuple[str, ...]) -> dict[str, str] | None:
        """Return the values of the segments in braces if the path matches, otherwise None."""
        if len(parts) != len(self.parts):
            return None
        values: dict[str, str] = {}
        for own, given in zip(self.parts, parts, strict=True):
            if own.startswith("{"):
                values[own[1:-1]] = given
            elif own != given:
                return None
        return values


@cache
def _parts(path: str) -> tuple[str, ...]:
    """Split the path of a declaration. The menu of every page looks up a dozen routes, so each path is split once."""
    return tuple(part for part in path.split("/") if part)


def shape(route: DeclaredRoute) -> tuple[str, tuple[str, ...]]:
    """Return a value that is equal for two routes that match the same requests."""
    return route.method, tuple("{}" if part.startswith("{") else part for part in route.parts)


def check_distinct(routes: Iterable[DeclaredRoute]) -> None:
    """Raise ValueError if two declarations match the same requests."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for route in routes:
        if shape(route) in seen:
            raise ValueError(f"{route.method} {route.path} is declared twice")
        seen.add(shape(route))
