"""Declarations of routes: method, path, purpose and access class. Every address of the gateway is declared by one.

The declarations are the source of the OpenAPI document and of the tests that try each route with each kind of credential. The
access class has no default: a route cannot be written without one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from taskgate.core.identity.access import Access


class RouteKind(StrEnum):
    """The kind of client that a route is for; it decides the form of a refusal and how cross-site requests are prevented."""

    MCP = "mcp"
    API = "api"
    """JSON for scripts. Changes made with a session cookie need the header `x-form-token`."""
    PAGE = "page"
    """HTML for people."""
    FORM = "form"
    """The target of a form on one of our pages, which sends the field `form_token`."""
    WEBHOOK = "webhook"
    """A message from another service, which its handler verifies by signature."""
    DOCUMENT = "document"
    """A fixed document that machines look up, or a file that pages load."""
    PROBE = "probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRoute:
    method: str
    path: str
    """A part in braces stands for any one part."""
    access: Access
    kind: RouteKind
    summary: str
    anonymous: bool = False
    """Whether callers without a credential are served, where the gateway serves such callers at all."""
    parts: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        # The menu of every page looks up a dozen routes, so the path is split once.
        object.__setattr__(self, "parts", tuple(part for part in self.path.split("/") if part))

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(part[1:-1] for part in self.parts if part.startswith("{"))

    def fits(self, parts: tuple[str, ...]) -> dict[str, str] | None:
        """The values of the places if the path matches, otherwise None."""
        if len(parts) != len(self.parts):
            return None
        values: dict[str, str] = {}
        for own, given in zip(self.parts, parts, strict=True):
            if own.startswith("{"):
                values[own[1:-1]] = given
            elif own != given:
                return None
        return values


def shape(route: DeclaredRoute) -> tuple[str, tuple[str, ...]]:
    """Equal for two routes that would match the same requests."""
    return route.method, tuple("{}" if part.startswith("{") else part for part in route.parts)


def check_distinct(routes: Iterable[DeclaredRoute]) -> None:
    """Raises ValueError where two declarations match the same requests."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for route in routes:
        if shape(route) in seen:
            raise ValueError(f"{route.method} {route.path} is declared twice")
        seen.add(shape(route))
