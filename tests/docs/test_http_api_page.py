"""The page of the HTTP API is generated from the declared routes, and every route declares the fields of its reply."""

from __future__ import annotations

from typing import Any

from tests.docs.blocks import ROOT
from tests.docs.http_api import declared_routes, page


def test_page_of_the_http_api_is_current() -> None:
    written = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")
    assert written == page(declared_routes()), "run: python -m tests.docs.http_api > docs/http-api.md"


def test_every_route_declares_the_fields_of_its_reply() -> None:
    bare = [
        f"{route.method} {route.path}"
        for route in declared_routes()
        if route.answer == dict[str, Any] and route.path != "/api/v1/openapi.json"
    ]
    assert bare == [], "declare `answer` with a type of src/taskgate/replies"
