"""A `subscriptions/listen` ends its subscriptions at the server when it ends, also if it was refused half-way."""

from __future__ import annotations

from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

KNOWN = [{"uri": f"note://{name}", "name": name} for name in ("a", "b", "secret")]
CONFIG: dict[str, Any] = {"governance": {"rules": [{"match": "resource:note://secret", "action": "deny"}]}}


def server() -> Upstream:
    upstream = Upstream("2025", capabilities={"tools": {}, "resources": {"subscribe": True}})

    async def listed(_call: Call) -> dict[str, Any]:
        return {"resources": KNOWN}

    async def done(_call: Call) -> dict[str, Any]:
        return {}

    upstream.on("resources/list", listed)
    upstream.on("resources/subscribe", done)
    upstream.on("resources/unsubscribe", done)
    return upstream


def followed(upstream: Upstream) -> list[str]:
    """Resources that were subscribed to at the server and not unsubscribed."""
    left: list[str] = []
    for message in upstream.received:
        if message.get("method") == "resources/subscribe":
            left.append(message["params"]["uri"])
        elif message.get("method") == "resources/unsubscribe":
            left.remove(message["params"]["uri"])
    return left


@virtual_time
@pytest.mark.parametrize(
    "wanted",
    [
        {"resourceSubscriptions": ["note://a", "note://b", "note://secret"]},
        {"resourceSubscriptions": ["note://a"], "taskIds": ["none"]},
    ],
    ids=["a resource that is denied", "tasks without the extension"],
)
async def test_refused_listen_leaves_no_subscription(wanted: dict[str, Any]) -> None:
    upstream = server()
    async with Gateway(CONFIG, {"s": upstream}) as gate:
        caller = await gate.caller("2026")
        await caller.tools()
        refused = await caller.begin("subscriptions/listen", {"notifications": wanted}).done()
        assert refused.error
        await gate.advance(1)
        assert followed(upstream) == []


@virtual_time
async def test_listen_naming_a_resource_twice_unsubscribes_it() -> None:
    upstream = server()
    async with Gateway(CONFIG, {"s": upstream}) as gate:
        caller = await gate.caller("2026")
        await caller.tools()
        stream = await caller.listen(resourceSubscriptions=["note://a", "note://a"])
        await stream.message(0)
        assert followed(upstream) == ["note://a"]
        await stream.disconnect()
        await gate.advance(5)
        assert followed(upstream) == []


@virtual_time
async def test_session_at_its_limit_may_renew_a_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does where another gateway goes on with it, which follows again what the session followed."""
    monkeypatch.setattr("taskgate.gateway.methods.following.MAX_URIS", 1)
    upstream = server()
    async with Gateway(CONFIG, {"s": upstream}) as gate:
        caller = await gate.caller("2025")
        for _ in range(2):
            assert (await caller.request("resources/subscribe", {"uri": "note://a"})).result == {}
        refused = await caller.request("resources/subscribe", {"uri": "note://b"})
        assert refused.error["data"]["error_type"] == "overloaded"
        assert (await caller.request("resources/unsubscribe", {"uri": "note://a"})).result == {}
        assert (await caller.request("resources/subscribe", {"uri": "note://b"})).result == {}
