"""The table of everything that can be asked for: method, path, who may, what answers, and what goes in and out.

Pages and the API are both declared as routes. A request that no route fits does not exist; what it needs is checked before the
handler runs. `/api/v1/openapi.json` is made from the same table, so it cannot say anything else than what is served.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from taskgate.core.governance.approval import Approver
from taskgate.core.identity import Permission
from taskgate.dashboard.web import Answer, EventAnswer, WebRequest
from taskgate.gateway.plan import Plan

Schema = Mapping[str, Any]

OBJECT: Final[Schema] = {"type": "object"}
ROWS: Final[Schema] = {"type": "array", "items": OBJECT}
TEXT: Final[Schema] = {"type": "string"}


def refusal(needs: Permission) -> str:
    return f"You may not do this here: it needs a role that may {needs.value}."


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of a known person: the values that stand in the path's places come along by name."""

    request: WebRequest
    who: Approver
    values: Mapping[str, str]

    @property
    def only(self) -> str | None:
        """Whose things this person may see: only their own, or None for everybody's."""
        return None if self.who.may(Permission.SEE) else self.who.id

    def asked(self, name: str) -> str | None:
        """A parameter of the address; an empty one, as forms send them, is none."""
        return self.request.query.get(name, "").strip() or None


Handler = Callable[[Visit], Awaitable[Answer | EventAnswer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    method: str
    path: str
    """Parts in braces stand for any one part."""
    needs: Permission | None
    """What one must be allowed to do; None is open to everybody who is known, for what is their own."""
    handler: Handler
    summary: str
    query: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the address, and what each is for."""
    body: Schema | None = None
    answer: Schema = field(default_factory=lambda: OBJECT)
    status: int = 200
    stream: bool = False
    """Whether the answer is a stream of events."""
    parts: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        # Every page asks a dozen times what is served, for its menu: the path is taken apart once.
        object.__setattr__(self, "parts", tuple(part for part in self.path.split("/") if part))

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(part[1:-1] for part in self.parts if part.startswith("{"))

    def fits(self, parts: tuple[str, ...]) -> dict[str, str] | None:
        if len(parts) != len(self.parts):
            return None
        values: dict[str, str] = {}
        for own, given in zip(self.parts, parts, strict=True):
            if own.startswith("{"):
                values[own[1:-1]] = given
            elif own != given:
                return None
        return values


@dataclass(frozen=True, slots=True)
class Found:
    route: Route
    values: Mapping[str, str]


class RouteTable:
    """Fixed parts win over places, whatever the order of declaration."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(sorted(routes, key=lambda route: [part.startswith("{") for part in route.parts]))
        self._by_length: dict[tuple[str, int], list[Route]] = {}
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for route in self.routes:
            shape = (route.method, tuple("{}" if part.startswith("{") else part for part in route.parts))
            if shape in seen:
                raise ValueError(f"{route.method} {route.path} is declared twice")
            seen.add(shape)
            self._by_length.setdefault((route.method, len(route.parts)), []).append(route)

    def find(self, method: str, path: str) -> Found | None:
        parts = tuple(part for part in path.split("/") if part)
        for route in self._by_length.get((method, len(parts)), ()):
            values = route.fits(parts)
            if values is not None:
                return Found(route, values)
        return None

    def openapi(self, version: str) -> dict[str, Any]:
        """The table as an OpenAPI 3.1 document."""
        paths: dict[str, dict[str, Any]] = {}
        for route in sorted(self.routes, key=lambda route: (route.path, route.method)):
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
        return {
            "openapi": "3.1.0",
            "info": {"title": "Taskgate", "version": version, "description": _DESCRIPTION},
            "paths": paths,
            "components": {
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
                "schemas": {"Problem": {"type": "object", "properties": {"error": TEXT}, "required": ["error"]}},
            },
            "security": [{"token": []}],
        }


_DESCRIPTION: Final = (
    "What the console shows and does, for scripts. `x-needs` names what a role must allow; without one, "
    "everybody with a token may ask, and sees their own things."
)


def _operation(route: Route) -> dict[str, Any]:
    places = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in route.places]
    query = [{"name": name, "in": "query", "description": text, "schema": TEXT} for name, text in route.query.items()]
    kind = "text/event-stream" if route.stream else "application/json"
    shown: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _operation_id(route),
        "x-needs": route.needs.value if route.needs is not None else None,
        "parameters": places + query,
        "responses": {
            str(route.status): {"description": "Done.", "content": {kind: {"schema": route.answer}}},
            "default": {
                "description": "What was wrong, in a sentence.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    if route.body is not None:
        shown["requestBody"] = {"content": {"application/json": {"schema": route.body}}}
    return shown


def _operation_id(route: Route) -> str:
    words = [part.strip("{}").replace(".", "_").replace("-", "_") for part in route.parts if part not in ("api", "v1")]
    version = [] if "v1" in route.parts else ["unversioned"]
    return "_".join([route.method.lower(), *version, *words])


def closed_object(required: Iterable[str] = (), **properties: Schema) -> Schema:
    """The schema of a body that holds these keys and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def get(path: str, needs: Permission | None, handler: Handler, summary: str, **more: Any) -> Route:
    """Something of the API that is read."""
    return Route(method="GET", path=f"/api/v1{path}", needs=needs, handler=handler, summary=summary, **more)


def post(path: str, needs: Permission | None, handler: Handler, summary: str, body: Schema, **more: Any) -> Route:
    """Something of the API that is done."""
    return Route(method="POST", path=f"/api/v1{path}", needs=needs, handler=handler, summary=summary, body=body, **more)


def page_route(path: str, needs: Permission | None, handler: Handler) -> Route:
    return Route(method="GET", path=path, needs=needs, handler=handler, summary="A page.")


def form_route(path: str, needs: Permission | None, handler: Handler) -> Route:
    """What a form of a page is sent to; the token that guards it has been checked."""
    return Route(method="POST", path=path, needs=needs, handler=handler, summary="A form.")


# What the console may ask about the configuration, which it does not read itself: whoever started the gateway answers.


@dataclass(frozen=True, slots=True)
class ShownConfiguration:
    """For people: where it is, its text with secrets hidden, and what was noticed while it was read."""

    path: str
    text: str
    problems: tuple[str, ...] = ()


class Configuration(Protocol):
    def shown(self) -> ShownConfiguration: ...

    def hidden(self, text: str) -> str:
        """A text that may quote the configuration, without the secrets of the one in force."""
        ...

    def governance(self) -> str:
        """The section `governance` as YAML, with secrets hidden."""
        ...

    def plan_with(self, governance: str) -> Plan:
        """The plan that this text in place of the section `governance` would make. Raises ValueError with what is wrong."""
        ...

    async def reload(self) -> str | None:
        """Read the file again and put it in force; what is wrong with it, if it is not in force now."""
        ...
