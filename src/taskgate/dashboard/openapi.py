"""Generates the OpenAPI 3.1 document of the JSON API from the declared routes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from taskgate.dashboard.routes import TEXT, Route

_DESCRIPTION: Final = (
    "The data and actions of the console as JSON. `x-access` is the access class of a route: `public`; `login`, any credential, "
    "which reaches its own data; `call`, a credential that may call tools in the scope that the request names; or the permission "
    "that a role must grant (also in `x-needs`). `x-command` is the command that does the same."
)


def openapi_document(routes: Iterable[Route], version: str) -> dict[str, Any]:
    """The declared routes as an OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in sorted(routes, key=lambda route: (route.path, route.method)):
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


def _operation(route: Route) -> dict[str, Any]:
    places = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in route.places]
    query = [{"name": name, "in": "query", "description": text, "schema": TEXT} for name, text in route.query.items()]
    kind = "text/event-stream" if route.stream else "application/json"
    shown: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _operation_id(route),
        "x-access": route.access.value,
        "x-needs": route.access.permission.value if route.access.permission is not None else None,
        **({"x-command": route.command} if route.command else {}),
        "parameters": places + query,
        "responses": {
            str(route.status): {"description": "Done.", "content": {kind: {"schema": route.answer}}},
            "default": {
                "description": "The error, as a sentence for people.",
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
