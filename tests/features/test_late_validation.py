"""The library for schemas is loaded by the first call, and only if values are checked."""

from __future__ import annotations

from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.gateway.catalog import validate


def notes() -> Upstream:
    server = Upstream("2025")

    @server.tool("read")
    async def read(_call: Call) -> str:
        return "a note"

    return server


@pytest.mark.parametrize("more", [{}, {"task": {"ttl": 60_000}}], ids=["plain", "task"])
@pytest.mark.parametrize(("mode", "expected"), [("off", []), ("warn", [("jsonschema_rs",)])])
@virtual_time
async def test_first_call_loads_the_library_for_schemas(
    mode: str, expected: list[Any], more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[str, ...]] = []

    async def load(*modules: str) -> None:
        loaded.append(modules)

    monkeypatch.setattr(validate, "load", load)
    async with Gateway({"validate": mode}, {"notes": notes()}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        assert loaded == []
        for _ in range(2):
            await caller.call("notes__read", **more)
        assert loaded == expected
