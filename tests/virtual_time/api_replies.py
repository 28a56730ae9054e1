"""Compares each reply of the JSON API that a test receives with the schema of the type that its route declares."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema_rs
from tests.virtual_time.http11 import Reply

from taskgate.dashboard.openapi import schemas_of
from taskgate.dashboard.routes import RouteTable


@cache
def _validator(kind: Any) -> jsonschema_rs.Draft202012Validator:
    (schema,), components = schemas_of(kind)
    return jsonschema_rs.Draft202012Validator({**schema, "components": {"schemas": components}})


def check_reply(table: RouteTable, method: str, path: str, reply: Reply) -> None:
    """Fail if a successful JSON reply has a field that its route does not declare, or lacks one."""
    path = path.partition("?")[0]
    found = table.find(method, path) or table.find(method, path.replace("/api/", "/api/v1/", 1))
    is_json = reply.headers.get("content-type", "").startswith("application/json")
    if found is None or not is_json or not 200 <= reply.status < 300:
        return
    problems = [
        f"{'/'.join(map(str, error.instance_path)) or 'the reply'}: {error.message}"
        for error in _validator(found.route.answer).iter_errors(reply.json())
    ]
    assert not problems, (
        f"the reply of {method} {found.route.path} differs from its type in src/taskgate/replies:\n"
        + "\n".join(problems[:5])
    )
