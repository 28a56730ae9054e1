"""The frame of the console: the table of routes with its permissions, OpenAPI, and the stream that updates pages."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from tests.virtual_time import Call, Gateway, Upstream, the_loop, virtual_time

from taskgate.access.routes import RouteKind
from taskgate.dashboard.topics import Topic

TOKENS: dict[str, Any] = {
    "tokens": [
        {"id": name, "sha256": hashlib.sha256(f"{name}-token-0123456789abcdef".encode()).hexdigest(), **roles}
        for name, roles in (("agent", {}), ("other", {}), ("ann", {"roles": ["approver"]}))
    ],
}
TASKS: dict[str, Any] = {"tasks": {"requests": {"tools": {"call": {}}}}}


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-token-0123456789abcdef"}


def bank_server() -> Upstream:
    bank = Upstream("2025")

    @bank.tool("pay")
    async def pay(call: Call) -> str:
        await call.sleep(100)
        return "paid"

    return bank


@virtual_time
async def test_every_route_of_the_table_is_described_and_requires_credentials() -> None:
    async with Gateway(TOKENS, {}) as gate:
        table = gate.life.dashboard.api.table
        document = (await gate.operator("GET", "/api/v1/openapi.json")).json()
        operations = {(method, path) for path, methods in document["paths"].items() for method in methods}
        assert operations == {(route.method.lower(), route.path) for route in table.routes}
        assert len({op["operationId"] for methods in document["paths"].values() for op in methods.values()}) == len(
            operations
        )
        for route in table.routes:
            described = document["paths"][route.path][route.method.lower()]
            needed = route.access.permission
            assert described["x-needs"] == (needed.value if needed is not None else None)
            assert described["x-access"] == route.access.value
            assert {p["name"] for p in described["parameters"] if p["in"] == "path"} == set(
                re.findall(r"{(\w+)}", route.path)
            )
            path = re.sub(r"{\w+}", "x", route.path)
            body: dict[str, Any] | None = {} if route.method == "POST" else None
            assert (await gate.http(route.method, path, body).done()).status == 401


@virtual_time
async def test_every_route_refuses_parameters_that_it_does_not_have() -> None:
    """A misspelled filter would return every row."""
    async with Gateway(TOKENS, {}) as gate:
        for route in gate.life.dashboard.api.table.routes:
            if route.kind is not RouteKind.API:
                continue
            path = re.sub(r"{\w+}", "x", route.path)
            reply = await gate.operator(
                route.method, f"{path}?serverr=a&{'&'.join(f'{name}=' for name in route.query)}", {}
            )
            assert reply.status == 400, route.path
            known = ", ".join(route.query) or "none"
            assert reply.json()["error"] == (
                f"Invalid request: unknown query parameter serverr; this route has: {known}"
            )
        assert (await gate.operator("GET", "/api/tasks?sinc=1d")).status == 400
        assert (await gate.operator("GET", "/api/v1/tasks?since=1d&until=1h&text=")).status == 200


@virtual_time
async def test_routes_without_a_version_still_work() -> None:
    async with Gateway(TOKENS, {}) as gate:
        for path in ("approvals", "grants", "pins", "questions", "servers", "waterfall"):
            old, new = [await gate.operator("GET", f"/api/{version}{path}") for version in ("", "v1/")]
            assert (old.status, old.json()) == (200, new.json())
        assert (await gate.operator("GET", "/api/tasks")).json() == []
        assert (await gate.operator("GET", "/api/v1/nothing")).status == 404


def frames(body: bytes) -> list[tuple[str, list[str]]]:
    """(id, topics) of every change in a stream."""
    found = re.findall(rb"id: (\S+)\nevent: change\ndata: (\S+)\n\n", body)
    return [(number.decode(), re.findall(r"\w+", data.decode())[1:]) for number, data in found]


@virtual_time
async def test_a_page_gets_changes_at_once_and_a_caller_only_its_own() -> None:
    async with Gateway(TOKENS, {"bank": bank_server()}) as gate:
        streams = {name: gate.http("GET", "/api/v1/events", headers=bearer(name)) for name in ("agent", "other", "ann")}
        for stream in streams.values():
            await stream.head()
        await gate.advance(1)
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef", capabilities=TASKS)
        await caller.call("bank__pay", {}, task={"ttl": 60000})
        await gate.advance(0.15)
        received = {
            name: {t for _, topics in frames(stream.reply.body) for t in topics} for name, stream in streams.items()
        }
        assert "tasks" in received["agent"]
        assert "tasks" in received["ann"]
        assert "tasks" not in received["other"]
        await gate.advance(16)
        assert b":ping" in streams["other"].reply.body


@virtual_time
async def test_streams_without_a_call_do_not_delay_a_drain() -> None:
    config = {**TOKENS, "governance": {"rules": [{"match": "pay", "action": "approve"}]}}
    async with Gateway(config, {"bank": bank_server()}) as gate:
        token = "agent-token-0123456789abcdef"
        stateful = await gate.caller("2025", token=token, capabilities=TASKS)
        stateless = await gate.caller("2026", token=token)
        held = await stateful.call("bank__pay", {}, task={"ttl": 60000})
        task = held.result["task"]["taskId"]
        streams = [
            gate.http("GET", "/api/v1/events", headers=bearer("agent")),
            gate.http("GET", f"/api/v1/tasks/{task}/events", headers=bearer("agent")),
            await stateful.listen(),
            await stateless.listen(toolsListChanged=True),
        ]
        for stream in streams:
            assert (await stream.head()).status == 200
        await gate.advance(1)
        assert not any(stream.is_done for stream in streams)
        began = the_loop().time()
        await gate.stop()
        assert the_loop().time() - began < 1
        assert all(stream.is_done for stream in streams)


@virtual_time
async def test_a_resumed_stream_reports_missed_changes_also_after_a_restart() -> None:
    async with Gateway(TOKENS, {"bank": bank_server()}) as gate:
        first = gate.http("GET", "/api/v1/events", headers=bearer("agent"))
        await first.head()
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef", capabilities=TASKS)
        await caller.call("bank__pay", {}, task={"ttl": 60000})
        await gate.advance(1)
        last, _ = frames(first.reply.body)[-1]
        await first.disconnect()
        same = gate.http("GET", "/api/v1/events", headers={**bearer("agent"), "last-event-id": last})
        await gate.advance(1)
        assert frames(same.reply.body) == []
        await same.disconnect()
        await gate.advance(1)
        await caller.call("bank__pay", {}, task={"ttl": 60000})
        await gate.advance(1)
        missed = gate.http("GET", "/api/v1/events", headers={**bearer("agent"), "last-event-id": last})
        await gate.advance(1)
        assert "tasks" in frames(missed.reply.body)[0][1]
        last, _ = frames(missed.reply.body)[-1]
        await gate.restart()
        assert missed.is_done
        later = gate.http("GET", "/api/v1/events", headers={**bearer("agent"), "last-event-id": last})
        await gate.advance(1)
        assert "tasks" in frames(later.reply.body)[0][1]
        await later.disconnect()


@virtual_time
async def test_a_stream_ends_with_the_role_behind_it() -> None:
    async with Gateway(TOKENS, {}) as gate:
        stream = gate.http("GET", "/api/v1/events", headers=bearer("ann"))
        await stream.head()
        plain = [{key: value for key, value in token.items() if key != "roles"} for token in TOKENS["tokens"]]
        await gate.reload({"tokens": plain})
        await gate.advance(16)
        assert b"event: ended" in stream.reply.body
        assert stream.is_done


@virtual_time
async def test_the_first_change_is_sent_at_once_and_a_burst_is_throttled() -> None:
    """One open page gets twenty frames a second, and so do all fifty together."""
    for pages, distance in ((1, 0.05), (50, 2.5)):
        async with Gateway(TOKENS, {}) as gate:
            streams = [gate.http("GET", "/api/v1/events", headers=bearer("ann")) for _ in range(pages)]
            for stream in streams:
                await stream.head()
            await gate.advance(60)
            live = gate.life.dashboard.live
            live.changed(Topic.TASKS)
            await gate.advance(0.03)
            assert all(len(frames(stream.reply.body)) == 1 for stream in streams)
            for _ in range(1_000):
                live.changed(Topic.TASKS)
                await gate.advance(0.01)
            counts = {len(frames(stream.reply.body)) for stream in streams}
            assert len(counts) == 1
            expected = 10 / distance
            assert expected * 0.7 - 1 <= max(counts) <= expected * 1.1 + 2, pages
            live.changed(Topic.INBOX)
            await gate.advance(distance + 0.03)
            assert all("inbox" in frames(stream.reply.body)[-1][1] for stream in streams)
            for stream in streams:
                await stream.disconnect()
            await gate.advance(1)
            assert live.open_streams == 0


@virtual_time
async def test_idle_pages_get_only_a_keepalive_every_fifteen_seconds() -> None:
    """What 200 open consoles do while nothing happens, counted: under 14 wake-ups a second, each a fraction of a millisecond."""
    async with Gateway(TOKENS, {}) as gate:
        streams = [gate.http("GET", "/api/v1/events", headers=bearer("ann")) for _ in range(200)]
        for stream in streams:
            await stream.head()
        await gate.advance(1)
        before = sum(len(stream.reply.body) for stream in streams)
        await gate.advance(150)
        text = sum(len(stream.reply.body) for stream in streams) - before
        assert text == 200 * 10 * len(b":ping\n\n")
