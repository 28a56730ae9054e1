"""A list that is too long for one answer comes in pages, and a page of another list is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness.gateway import running_gateway
from tests.scopes.scope_client import STATEFUL, STATELESS, opened, scope, server

from taskgate.gateway.methods.catalog_lists import PAGE

pytestmark = [pytest.mark.timeout(90), pytest.mark.virtual_time]
NAMES = [f"tool_{number}" for number in range(PAGE + 5)]


@pytest.mark.parametrize("version", [STATEFUL, STATELESS])
async def test_a_long_list_comes_in_pages_and_a_cursor_belongs_to_one_list(version: str) -> None:
    # One server may not offer more than fits on a page.
    servers: dict[str, Any] = {
        "a": server("a", *NAMES[:600]),
        "b": server("b", *NAMES[600:]),
        "few": server("few", "one"),
    }
    scopes = {"default": scope("a", "b", names="plain"), "more": scope("a", "b", "few", names="plain")}
    async with running_gateway({"schema": 1, "servers": servers, "scopes": scopes}) as gateway:
        async with opened(gateway.url, version) as caller:
            first = (await caller.ask("tools/list")).result
            rest = (await caller.ask("tools/list", {"cursor": first["nextCursor"]})).result
            assert [tool["name"] for tool in (*first["tools"], *rest["tools"])] == NAMES
            assert "nextCursor" not in rest
        async with opened(f"{gateway.url}/more", version) as caller:
            refused = await caller.ask("tools/list", {"cursor": first["nextCursor"]})
            assert (refused.error["code"], refused.error["data"]["error_type"]) == (-32602, "invalid_cursor")
