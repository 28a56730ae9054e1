"""Writes docs/http-api.md from the declared routes: `python -m tests.docs.http_api > docs/http-api.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.virtual_time import Gateway, virtual_time

from taskgate.dashboard.openapi import schemas_of
from taskgate.dashboard.routes import Route
from taskgate.replies.approvals import ApprovalRow, GrantRow
from taskgate.replies.definitions import ChangedDefinition
from taskgate.replies.questions import QuestionRow
from taskgate.replies.scopes import ScopeRow
from taskgate.replies.servers import ServerRow
from taskgate.replies.tasks import OperatorTask, TaskRow

Schema = Mapping[str, Any]
HEAD = """# HTTP API

Every route of the JSON API: its parameters, its reply and the command that does the same.

This page is generated from the route table. A running gateway serves the same as OpenAPI at `GET /api/v1/openapi.json`.

- Send a token as `Authorization: Bearer TOKEN`. **Access** is the access class of a route
  ([access classes](identity.md#access-classes)); a credential that is not sufficient gets status 401 or 403.
- Changes are `POST` with a JSON object, or `DELETE`. An error has a status from 400 on and a JSON object with `error`, a sentence
  for people.
- A query parameter that a route does not have gets status 400; the error names the ones it has. Empty ones are ignored.
- `/api/...` without `v1` is an alias of `/api/v1/...`, except for `/api/tasks`.
- Times are ISO 8601 in UTC. Fields marked *optional* may be missing. New fields may be added in any release: ignore those that you
  do not know.
- Lists that do not fit in one reply have `next`, or the header `x-next-after`: send its value as `after` (`before` in the audit
  log).
"""
KINDS = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false", "object": "object"}


def schema_of(kind: Any) -> Schema:
    """The schema of a type, with those that it refers to in their places."""
    (schema,), components = schemas_of(kind)
    return whole(schema, components)


def whole(schema: Schema, components: Mapping[str, Schema]) -> Schema:
    name = schema.get("$ref", "").rpartition("/")[2]
    if name:
        return whole({**components[name], **{key: schema[key] for key in schema if key != "$ref"}}, components)
    found = dict(schema)
    if "anyOf" in found:
        kinds = [whole(option, components) for option in found.pop("anyOf")]
        (first,) = (kind for kind in kinds if kind["type"] != "null")
        found = {**first, **found, "type": [first["type"], "null"]}
    if "items" in found:
        found["items"] = whole(found["items"], components)
    if "properties" in found:
        found["properties"] = {key: whole(field, components) for key, field in found["properties"].items()}
    return found


SHARED = {
    "task of version 0.1": schema_of(TaskRow),
    "task": schema_of(OperatorTask),
    "approval": schema_of(ApprovalRow),
    "grant": schema_of(GrantRow),
    "question": schema_of(QuestionRow),
    "changed definition": schema_of(ChangedDefinition),
    "server": schema_of(ServerRow),
    "scope": schema_of(ScopeRow),
}
"""Objects that several replies contain; each is described once."""


def properties(schema: Schema) -> Mapping[str, Schema]:
    found: Mapping[str, Schema] = schema.get("properties", {})
    return found


def shared_in(schema: Schema) -> str:
    """The shared object whose fields this object has, the largest if there are several; empty if there is none."""
    own = properties(schema)
    fitting = [
        name
        for name, shared in SHARED.items()
        if properties(shared).items() <= own.items() and set(shared["required"]) <= set(schema["required"])
    ]
    return max(fitting, key=lambda name: len(properties(SHARED[name])), default="")


def link(name: str) -> str:
    return f"[{name}](#{name.replace(' ', '-').replace('.', '')})"


def kind_of(schema: Schema) -> str:
    kinds: Any = schema.get("type", "any JSON value")
    first, *rest = kinds if isinstance(kinds, list) else [kinds]

    if first == "array":
        found = f"list of {kind_of(schema['items'])}"
    elif schema.get("format") == "date-time":
        found = "time"
    elif first == "object" and shared_in(schema):
        found = link(shared_in(schema))
    else:
        found = str(KINDS.get(first, first))
    return f"{found} or null" if rest else found


def fields_of(schema: Schema, path: str = "", *, whole: bool = False) -> Iterator[str]:
    """Rows of a table: every field with its path, except those of a shared object. `whole`: describe that object itself."""
    kind = schema.get("type")
    if kind == "array" or (isinstance(kind, list) and kind[0] == "array"):
        yield from fields_of(schema["items"], f"{path}[]")
        return
    shared = "" if whole else shared_in(schema)
    left_out = properties(SHARED[shared]) if shared else {}
    for name, field in properties(schema).items():
        if name in left_out:
            continue
        place = f"{path}.{name}" if path else name
        values = ", ".join(f"`{value}`" for value in field.get("enum", ()) if value is not None)
        text = ": ".join(part for part in (field.get("description", ""), values) if part)
        meaning = "; ".join(part for part in ("" if name in schema["required"] else "*optional*", text) if part)
        yield f"| `{place}` | {kind_of(field)} | {meaning} |"
        yield from fields_of(field, place)


def reply_lines(schema: Schema) -> Iterator[str]:
    if schema.get("type") == "string":
        yield f"Reply: {schema['description']}."
        return
    is_list = schema.get("type") == "array"
    item = schema["items"] if is_list else schema
    shared = shared_in(item)
    rows = list(fields_of(schema, ""))
    what = f"the fields of {link(shared)}" if shared else "an object with these fields"
    what = (
        f"a list; each entry is {what}"
        if is_list and not shared
        else f"a list; each entry has {what}"
        if is_list
        else what
    )
    if shared and rows:
        what += ", and these"
    if not rows:
        yield f"Reply: {what}."
        return
    yield f"Reply: {what}:"
    yield from ("", "| field | type | meaning |", "|---|---|---|", *rows)


def body_names(schema: Schema) -> str:
    shown = []
    for name, field in properties(schema).items():
        inside = f" (object: {body_names(field)})" if properties(field) else ""
        shown.append(f"`{name}`{'' if name in schema.get('required', ()) else '?'}{inside}")
    return ", ".join(shown)


def body_lines(schema: Schema) -> Iterator[str]:
    names = body_names(schema)
    yield f"Body: {names}{' (`?`: optional)' if '?' in names else ''}." if names else "Body: an empty object."


def route_lines(route: Route) -> Iterator[str]:
    yield from (f"### {route.method} {route.path}", "", route.summary, "")
    command = f" Command: `{route.command}`." if route.command else ""
    status = f" Status: {route.status}." if route.status != 200 else ""
    stream = " The reply is a stream of server-sent events." if route.stream else ""
    yield f"Access: `{route.access.value}`.{command}{status}{stream}"
    if route.query:
        yield from ("", "| parameter | meaning |", "|---|---|")
        yield from (f"| `{name}` | {text} |" for name, text in route.query.items())
    if route.body is not None:
        yield ""
        yield from body_lines(route.body)
    if route.path != "/api/v1/openapi.json":
        yield ""
        yield from reply_lines(schema_of(route.answer))
    yield ""


def group_of(route: Route) -> str:
    name = next(part for part in route.parts if part not in ("api", "v1"))
    return {"openapi.json": "OpenAPI"}.get(name, name.replace("-", " ").capitalize())


def page(routes: list[Route]) -> str:
    lines = [HEAD]
    groups: dict[str, list[Route]] = {}
    for route in sorted(routes, key=lambda route: (group_of(route), route.path, route.method)):
        groups.setdefault(group_of(route), []).append(route)
    for group, members in groups.items():
        lines += [f"## {group}", ""]
        for route in members:
            lines += route_lines(route)
    lines += ["## Objects", "", "Objects that several replies contain.", ""]
    for name, schema in SHARED.items():
        lines += [f"### {name.capitalize()}", "", "| field | type | meaning |", "|---|---|---|"]
        lines += [*fields_of(schema, whole=True), ""]
    return "\n".join(lines).rstrip() + "\n"


def declared_routes() -> list[Route]:
    found: list[Route] = []

    @virtual_time
    async def read() -> None:
        async with Gateway({}, {}) as gate:
            found.extend(gate.life.dashboard.api.table.routes)

    read()
    return found


if __name__ == "__main__":
    print(page(declared_routes()), end="")
