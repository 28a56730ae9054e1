"""Writes docs/http-api.md from the declared routes: `python -m tests.docs.http_api > docs/http-api.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.virtual_time import Gateway, virtual_time

from taskgate.dashboard.openapi import schemas_of
from taskgate.dashboard.routes import Route

HEAD = """# HTTP API

What holds for every route of the JSON API, and the list of routes, each with the command that does the same.

Parameters, bodies and the fields of every reply are in the OpenAPI document of a running gateway, for viewers and generators of
clients:

<!-- example: not run, it needs the operator's token -->
```console
$ curl -s -H "Authorization: Bearer $TASKGATE_TOKEN" http://127.0.0.1:7467/api/v1/openapi.json
```

New fields, parameters and routes may be added to `/api/v1` in any release: ignore fields that you do not know. `/api/...` without
`v1` is an alias, except for `/api/tasks`.

## Authentication and roles

Send a token as `Authorization: Bearer TOKEN`: of the operator, of an approver, or of a caller. The column *access* below,
`x-access` in OpenAPI, is the [access class](identity.md#access-classes) of a route. Where it is `login`, you reach what is your
own, and with a role that has the permission `see` (to change something: `act`) what belongs to all callers. Pages of the console
use their session instead, for changes with the header `x-form-token`.

## Requests and replies

A change is a `POST` with a JSON object of at most 256 KiB and the content type `application/json`, or a `DELETE`. An unknown
query parameter gets status 400, and the error names those of the route; an empty one is ignored. `since` and `until` accept
`30m`, `24h`, `7d`, a date or a time. Times in replies are ISO 8601 in UTC. Fields that OpenAPI does not list as `required` may be
missing.

## Errors

An error has a status from 400 on and `{"error": ...}`, a sentence for people. The contract is the status, and `reason` if there
is one:

| status | meaning |
|---|---|
| 400 | invalid parameter or body |
| 401 | no valid credential; `reason` is a stable word |
| 403 | not with this credential; `reason` as above |
| 404 | it does not exist, or belongs to another tenant |
| 409, 410 | it is not in a state for this, for example already decided; the approval has expired |
| 413, 415 | the body is too large, or not JSON |
| 429 | too many failed attempts; `Retry-After` has the seconds to wait |
| 503 | the gateway is overloaded or shutting down, or its store is unavailable |

## Decisions

Send the `arguments_digest` of the view that the person has seen with an approval: it is rejected (409) for any other arguments.
If a decision does not count, `error` is a stable word and `message` the sentence.

## Paging

`limit` is 50, and at most 1000. If there are more rows, the reply has `next`, or the header `x-next-after` if it is a plain list:
send the value as `after` (`before` for the audit log) with the same filters. Exports of the history and of the audit log have up
to 5000 rows a page.

## CSV and JSON lines

With `format=csv`, `/api/v1/history/export` and `/api/v1/usage` return UTF-8 with a header line. Text that a spreadsheet would
read as a formula begins with `'`. New columns of the history are added at the end. With `format=jsonl` exports have one JSON
object per line.

## Streams

Streams are server-sent events; an idle one sends `:ping`. `/api/v1/tasks/{id}/events` sends `task_status` after each change and
ends with the task. `/api/v1/events` sends `change` with `{topics}` whenever tasks, inbox, servers, scopes or definitions change,
and continues after a break with `Last-Event-ID`, or with `?after=` and the `data-version` of a page. The last event of a stream
whose [credential ends](identity.md#when-a-credential-ends) is `ended` with `{error_type, message}`.
"""


def command_cell(route: Route) -> str:
    return f"`{route.command}`" if route.command else ""


def route_rows(routes: list[Route]) -> Iterator[str]:
    for route in sorted(routes, key=lambda route: (route.path, route.method)):
        stream = " A stream." if route.stream else ""
        yield f"| `{route.method} {route.path}` | {route.summary}{stream} | `{route.access.value}` | {command_cell(route)} |"


def deprecated_rows(routes: list[Route]) -> Iterator[str]:
    """The query parameters, and the fields of replies, whose descriptions declare them or a value of them as deprecated."""
    for route in sorted(routes, key=lambda route: (route.path, route.method)):
        for name, text in route.query.items():
            if "deprecated" in text:
                yield f"| `{name}` of `{route.method} {route.path}` | {text.removeprefix('deprecated; ')} |"
    _, components = schemas_of(*(route.answer for route in routes))
    for name, component in sorted(components.items()):
        fields: Mapping[str, Mapping[str, Any]] = component.get("properties", {})
        for field, schema in fields.items():
            text = str(schema.get("description", ""))
            if "deprecated" in text:
                yield f"| `{field}` of `{name}` | {text.removeprefix('deprecated name of ')} |"


def page(routes: list[Route]) -> str:
    lines = [
        HEAD,
        "## Routes",
        "",
        "This table and the next one are generated from the declarations of the routes.",
        "",
    ]
    lines += ["| request | what it does | access | command |", "|---|---|---|---|", *route_rows(routes), ""]
    lines += ["## Deprecated", "", "| deprecated | instead |", "|---|---|"]
    lines += ["| `GET /api/tasks` | `GET /api/v1/tasks` |", *deprecated_rows(routes), ""]
    lines += ["Next: [every error](errors.md), and [the Python client](client.md).", ""]
    return "\n".join(lines)


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
