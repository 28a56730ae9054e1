"""Generates the OpenAPI 3.1 document of the JSON API from the declared routes and the types of their replies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, inspect

from taskgate.dashboard.routes import TEXT, Route, Schema

_DESCRIPTION: Final = (
    "The data and actions of the console as JSON. `x-access` is the access class of a route: `public`; `login`, any credential, "
    "which reaches its own data; `call`, a credential that may call tools in the scope that the request names; or the permission "
    "that a role must grant (also in `x-needs`). `x-command` is the command that does the same."
)


def openapi_document(routes: Iterable[Route], version: str) -> dict[str, Any]:
    """The declared routes as an OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    declared = sorted(routes, key=lambda route: (route.path, route.method))
    answers, components = schemas_of(*(route.answer for route in declared))
    for route, answer in zip(declared, answers, strict=True):
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, answer)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Taskgate", "version": version, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                **components,
                "Problem": {"type": "object", "properties": {"error": TEXT}, "required": ["error"]},
            },
        },
        "security": [{"token": []}],
    }


def _operation(route: Route, answer: Schema) -> dict[str, Any]:
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
            str(route.status): {"description": "Done.", "content": {kind: {"schema": answer}}},
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


@cache
def schemas_of(*types: Any) -> tuple[tuple[Schema, ...], dict[str, Schema]]:
    """The schema of each type, and by name those of the records and enumerations that they refer to.

    Those of all replies take a tenth of a second, so they are computed once.
    """
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    named = {kind.cls.__name__: kind for kind in _named(inspect.multi_type_info(types))}
    return schemas, {name: _component(schema, named[name]) for name, schema in components.items()}


def _component(schema: Schema, kind: inspect.StructType | inspect.EnumType) -> Schema:
    """Without titles and docstrings, which are for contributors."""
    if isinstance(kind, inspect.EnumType):
        return {"type": "string", "enum": [member.value for member in kind.cls]}
    omits = kind.cls.__struct_config__.omit_defaults
    return {
        "type": "object",
        "properties": {name: _property(field, omits=omits) for name, field in schema["properties"].items()},
        "required": [field.encode_name for field in kind.fields if not _may_be_missing(field, omits=omits)],
        "additionalProperties": False,
    }


def _may_be_missing(field: inspect.Field, *, omits: bool) -> bool:
    """Whether it has the default `UNSET`, which is none to `inspect`, or is omitted if it has its default."""
    has_default = field.default is not NODEFAULT or field.default_factory is not NODEFAULT
    return not field.required and (omits or not has_default)


def _property(schema: Schema, *, omits: bool) -> Schema:
    found = {key: value for key, value in schema.items() if key != "default"}
    if omits and schema.get("default", "") is None and "anyOf" in found:
        # It is omitted instead of null.
        (option,) = (option for option in found.pop("anyOf") if option != {"type": "null"})
        found |= option
    return found


def _named(kinds: Iterable[inspect.Type]) -> Iterator[inspect.StructType | inspect.EnumType]:
    """Every record and enumeration in these types."""
    left, seen = list(kinds), set[type]()
    while left:
        kind = left.pop()
        if isinstance(kind, inspect.Metadata):
            left.append(kind.type)
        elif isinstance(kind, inspect.CollectionType):
            left.append(kind.item_type)
        elif isinstance(kind, inspect.UnionType):
            left += kind.types
        elif isinstance(kind, inspect.StructType | inspect.EnumType) and kind.cls not in seen:
            seen.add(kind.cls)
            left += [field.type for field in kind.fields] if isinstance(kind, inspect.StructType) else ()
            yield kind
