"""The page of the HTTP API lists every declared route, and every route declares the fields of its reply."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.docs.blocks import ROOT
from tests.docs.http_api import declared_routes, deprecated_rows, page

from taskgate.dashboard.openapi import openapi_document


def test_page_of_the_http_api_is_current() -> None:
    written = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")
    assert written == page(declared_routes()), "run: python -m tests.docs.http_api > docs/http-api.md"


def test_every_route_is_documented_once_with_its_command() -> None:
    written = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8").splitlines()
    for route in declared_routes():
        (row,) = (line for line in written if line.startswith(f"| `{route.method} {route.path}` | {route.summary}"))
        assert route.command in row, f"{route.method} {route.path}"


def test_deprecated_names_are_listed_with_their_replacement() -> None:
    routes = declared_routes()
    rows = list(deprecated_rows(routes))
    assert "| `starts_on_yes` of `ApprovalDetail` | `starts_on_approval` |" in rows
    assert len(rows) == str(openapi_document(routes, "1")).count("deprecated") > 2


def test_deprecated_query_parameter_is_listed() -> None:
    (route,) = (route for route in declared_routes() if (route.method, route.path) == ("GET", "/api/v1/usage"))
    older = msgspec.structs.replace(route, query={"days": "days to report", "tag": "deprecated; has no effect"})
    assert "| `tag` of `GET /api/v1/usage` | has no effect |" in list(deprecated_rows([older]))


def test_every_route_declares_the_fields_of_its_reply() -> None:
    bare = [
        f"{route.method} {route.path}"
        for route in declared_routes()
        if route.answer == dict[str, Any] and route.path != "/api/v1/openapi.json"
    ]
    assert bare == [], "declare `answer` with a type of src/taskgate/replies"
