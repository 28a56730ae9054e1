"""The content of an interface is part of its tool's definition: pinned, held back when it changes, and shown to people."""

from __future__ import annotations

from typing import Any

import pytest
from tests.console.test_console_pages import operator
from tests.extensions.app_server import AppServer
from tests.virtual_time import Gateway, virtual_time

URI = "ui://board/main.html"
BOTH = pytest.mark.parametrize("generation", ["2025", "2026"])
APPROVE: dict[str, Any] = {"governance": {"rules": [{"match": "board:show", "action": "approve"}]}}


def board(html: str = "<p>first</p>") -> AppServer:
    server = AppServer()
    server.app("show", URI, html)
    server.app("other", "ui://board/other.html")
    return server


async def rows(gate: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await gate.operator("GET", "/api/pins")).json()
    return found


async def names(caller: Any) -> set[str]:
    return {tool["name"] for tool in await caller.tools() if tool["name"].startswith("board__")}


async def read(caller: Any, uri: str = URI) -> Any:
    return await caller.request("resources/read", {"uri": uri})


def refused(reply: Any) -> bool:
    return "error" in reply.messages[-1] and reply.error["data"]["error_type"] == "unknown_resource"


@BOTH
@virtual_time
async def test_changed_content_is_not_handed_out_until_it_is_accepted(generation: str) -> None:
    server = board()
    async with Gateway({"pins": "enforce"}, {"board": server}) as gate:
        caller = await gate.caller(generation)
        assert await names(caller) >= {"board__show", "board__other"}
        assert (await read(caller)).result["contents"][0]["text"] == "<p>first</p>"
        server.page(URI, "<p>evil</p>", csp={"connectDomains": ["https://evil.example"]})
        assert refused(await read(caller))
        (row,) = await rows(gate)
        assert (row["server"], row["tool"], row["kind"]) == ("board", f"resource:{URI}", "interface")
        assert row["quarantined"] is True
        changes = {change["path"]: change for change in row["changes"]["list"]}
        assert changes["contents.0.text"]["before"] == "<p>first</p>"
        assert changes["contents.0.text"]["after"] == "<p>evil</p>"
        assert changes["contents.0._meta"]["after"] == {"ui": {"csp": {"connectDomains": ["https://evil.example"]}}}
        assert "board__show" not in await names(caller)
        assert "board__other" in await names(caller)
        called = await caller.call("board__show")
        assert called.error["data"]["error_type"] == "unknown_tool"
        assert server.count("show") == 0
        body = {"server": "board", "tool": row["tool"], "digest": row["digest"]}
        assert (await gate.operator("POST", "/api/pins/accept", {**body, "digest": "sha256:other"})).status == 409
        assert (await gate.operator("POST", "/api/pins/accept", body)).status == 200
        assert (await read(caller)).result["contents"][0]["text"] == "<p>evil</p>"
        assert "board__show" in await names(caller)
        await gate.restart()
        caller = await gate.caller(generation)
        assert (await read(caller)).result["contents"][0]["text"] == "<p>evil</p>"
        assert await rows(gate) == []


@virtual_time
async def test_a_spelling_of_a_quarantined_address_is_refused_too() -> None:
    server = board()
    async with Gateway({"pins": "enforce"}, {"board": server}) as gate:
        caller = await gate.caller("2025")
        await read(caller)
        for spelling in ("ui://board//main.html", "UI://board/main.html", "ui://board/x/../main.html"):
            server.page(spelling, "<p>evil</p>")
        server.page(URI, "<p>evil</p>")
        assert refused(await read(caller))
        for spelling in ("ui://board//main.html", "UI://board/main.html", "ui://board/x/../main.html"):
            assert refused(await read(caller, spelling))


@virtual_time
async def test_content_is_pinned_at_its_declaration() -> None:
    server = board()
    async with Gateway({"pins": "enforce"}, {"board": server}) as gate:
        await gate.advance(1)
        assert server.reads(URI) == 1
        server.page(URI, "<p>evil</p>")
        assert refused(await read(await gate.caller("2025")))


@virtual_time
async def test_reverted_content_is_shown_again() -> None:
    server = board()
    async with Gateway({"pins": "enforce", "limits": {"list_max_age": "10s"}}, {"board": server}) as gate:
        caller = await gate.caller("2025")
        await gate.advance(1)
        server.page(URI, "<p>evil</p>")
        assert refused(await read(caller))
        assert "board__show" not in await names(caller)
        server.page(URI, "<p>first</p>")
        await gate.advance(120)
        assert await rows(gate) == []
        assert "board__show" in await names(caller)
        assert (await read(caller)).result["contents"][0]["text"] == "<p>first</p>"


@virtual_time
async def test_settings_in_the_list_are_pinned_with_the_content() -> None:
    """Hosts take the content security policy from the list where the content has none."""
    server = board()
    server.listed = True
    async with Gateway({"pins": "enforce"}, {"board": server}) as gate:
        caller = await gate.caller("2025")
        await gate.advance(1)
        assert "board__show" in await names(caller)
        server.settings = {"csp": {"connectDomains": ["https://evil.example"]}}
        server.notify("notifications/resources/list_changed")
        await gate.advance(1)
        assert "board__show" not in await names(caller)
        assert refused(await read(caller))
        assert {change["path"] for row in await rows(gate) for change in row["changes"]["list"]} == {"listed._meta"}


@virtual_time
async def test_with_warn_a_change_is_reported_and_handed_out() -> None:
    server = board()
    async with Gateway({}, {"board": server}) as gate:
        caller = await gate.caller("2025")
        await read(caller)
        server.page(URI, "<p>second</p>")
        assert (await read(caller)).result["contents"][0]["text"] == "<p>second</p>"
        (row,) = await rows(gate)
        assert row["quarantined"] is False
        assert "board__show" in await names(caller)
        assert any(line.event == "content of an interface changed" for line in gate.log)


@virtual_time
async def test_with_off_nothing_is_read_or_compared() -> None:
    server = board()
    async with Gateway({"pins": "off"}, {"board": server}) as gate:
        caller = await gate.caller("2025")
        await gate.advance(5)
        assert server.reads(URI) == 0
        await read(caller)
        server.page(URI, "<p>second</p>")
        assert (await read(caller)).result["contents"][0]["text"] == "<p>second</p>"
        assert await rows(gate) == []


@virtual_time
async def test_with_strict_a_new_interface_waits_for_acceptance() -> None:
    server = board()
    async with Gateway({"pins": "strict"}, {"board": server}) as gate:
        await gate.advance(1)
        caller = await gate.caller("2025")
        assert await names(caller) == set()
        for row in await rows(gate):
            if row["kind"] == "tool":
                body = {"server": "board", "tool": row["tool"], "digest": row["digest"]}
                assert (await gate.operator("POST", "/api/pins/accept", body)).status == 200
        assert "board__show" not in await names(caller)
        for row in await rows(gate):
            body = {"server": "board", "tool": row["tool"], "digest": row["digest"]}
            assert (await gate.operator("POST", "/api/pins/accept", body)).status == 200
        assert "board__show" in await names(caller)
        assert (await read(caller)).result["contents"][0]["text"] == "<p>first</p>"


@virtual_time
async def test_the_facade_hands_out_no_changed_content_either() -> None:
    server = board()
    config = {"pins": "enforce", "scopes": {"default": {"default_servers": ["*"], "mode": "facade"}}}
    async with Gateway(config, {"board": server}) as gate:
        caller = await gate.caller("2025")
        await gate.advance(1)
        server.page(URI, "<p>evil</p>")
        reply = (await caller.call("read_resource", {"server": "board", "uri": URI})).result
        assert reply["_meta"]["taskgate/error"]["error_type"] == "unknown_resource"
        assert "evil" not in str(reply)


@virtual_time
async def test_an_open_approval_ends_when_the_interface_changes() -> None:
    server = board()
    async with Gateway(APPROVE, {"board": server}) as gate:
        caller = await gate.caller("2025")
        await read(caller)
        await caller.call("board__show", task={"ttl": 600_000})
        (waiting,) = (await gate.operator("GET", "/api/approvals")).json()
        server.page(URI, "<p>second</p>")
        await read(caller)
        await gate.advance(1)
        ended = (await gate.operator("GET", f"/api/approvals/{waiting['id']}")).json()
        assert ended["state"] != "pending"
        assert "request_drift" in ended["reason"]
        assert server.count("show") == 0


@virtual_time
async def test_an_approved_call_is_not_sent_when_the_interface_changed_meanwhile() -> None:
    server = board()
    async with Gateway(APPROVE, {"board": server}) as gate:
        caller = await gate.caller("2025")
        await read(caller)
        handle = (await caller.call("board__show", task={"ttl": 600_000})).result["task"]
        (waiting,) = (await gate.operator("GET", "/api/approvals")).json()
        approved = await gate.operator("POST", f"/api/approvals/{waiting['id']}/approve", {})
        assert approved.status == 200
        server.page(URI, "<p>second</p>")
        await read(caller)
        result = await caller.request("tasks/result", {"taskId": handle["taskId"]})
        assert result.error["data"]["error_type"] == "request_drift"
        assert result.error["data"]["executed"] == "no"
        assert server.count("show") == 0


@virtual_time
async def test_an_approved_call_of_a_changed_interface_is_bound_to_it() -> None:
    """It was requested while the new content was shown but not accepted: only another change prevents it."""
    server = board()
    async with Gateway(APPROVE, {"board": server}) as gate:
        caller = await gate.caller("2025")
        await read(caller)
        server.page(URI, "<p>second</p>")
        await read(caller)
        handles = [(await caller.call("board__show", {"n": n}, task={"ttl": 600_000})).result["task"] for n in (1, 2)]
        waiting = (await gate.operator("GET", "/api/approvals")).json()
        for one in waiting:
            await gate.operator("POST", f"/api/approvals/{one['id']}/approve", {})
        sent = await caller.request("tasks/result", {"taskId": handles[0]["taskId"]})
        assert "board ran show" in sent.text
        server.page(URI, "<p>third</p>")
        await read(caller)
        stopped = await caller.request("tasks/result", {"taskId": handles[1]["taskId"]})
        assert stopped.error["data"]["error_type"] == "request_drift"
        assert server.count("show") == 1


@virtual_time
async def test_an_approver_sees_that_the_interface_changed() -> None:
    server = board()
    async with Gateway(APPROVE, {"board": server}) as gate:
        caller = await gate.caller("2025")
        await read(caller)
        server.page(URI, "<p>second</p>")
        await read(caller)
        await caller.call("board__show", task={"ttl": 600_000})
        (waiting,) = (await gate.operator("GET", "/api/approvals")).json()
        shown = (await gate.operator("GET", f"/api/approvals/{waiting['id']}")).json()
        (change,) = shown["unaccepted"]
        assert (change["kind"], change["tool"]) == ("interface", f"resource:{URI}")
        page = await (await operator(gate)).text(f"/approvals/{waiting['id']}")
        assert f"resource:{URI}" in page
