"""The gateway's own app: which tools are shown with it, what it reads, and that it is one self-contained page."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

import pytest
from tests.extensions.app_server import APP_MIME, RENDERS_APPS, AppServer
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

CARD = "ui://taskgate/task-card.html"
BOTH = pytest.mark.parametrize("generation", ["2025", "2026"])
HOSTILE = "<img src=x onerror=alert(1)>\u202e</pre>"
HELD: dict[str, Any] = {"governance": {"rules": [{"match": "notes:wipe", "action": "approve"}]}}
TASKS: dict[str, Any] = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}


def notes() -> Upstream:
    made = Upstream("both")

    @made.tool("slow")
    async def slow(call: Call) -> str:
        call.progress(3, 10)
        await call.sleep(100)
        return HOSTILE

    @made.tool("wipe")
    async def wipe(call: Call) -> str:
        return "wiped"

    return made


def cards(tools: list[dict[str, Any]]) -> set[str]:
    return {tool["name"] for tool in tools if tool.get("_meta", {}).get("ui", {}).get("resourceUri") == CARD}


def names(tools: list[dict[str, Any]]) -> set[str]:
    return {tool["name"] for tool in tools}


@pytest.mark.parametrize(
    ("mode", "session", "stateless"),
    [
        ("auto", {"notes__echo", "notes__slow", "notes__wipe", "show_tasks"}, {"notes__wipe", "show_tasks"}),
        ("held", {"notes__wipe", "show_tasks"}, {"notes__wipe", "show_tasks"}),
        (
            "all",
            {"notes__echo", "notes__slow", "notes__wipe", "show_tasks"},
            {"notes__echo", "notes__slow", "notes__wipe", "show_tasks"},
        ),
        ("off", set(), set()),
    ],
)
@virtual_time
async def test_the_setting_selects_the_tools_with_a_card(mode: str, session: set[str], stateless: set[str]) -> None:
    async with Gateway({**HELD, "apps": {"task_card": mode}}, {"notes": notes()}) as gate:
        host = await gate.caller("2025", capabilities=RENDERS_APPS)
        assert cards(await host.tools()) == session
        assert cards(await (await gate.caller("2026", capabilities=RENDERS_APPS)).tools()) == stateless
        assert cards(await (await gate.caller("2026")).tools()) == stateless
        plain = await gate.caller("2025")
        assert cards(await plain.tools()) == set()
        assert "show_tasks" not in names(await plain.tools())
        called = await host.call("show_tasks")
        assert ("error" in called.last) is (mode == "off")


@virtual_time
async def test_a_stateless_caller_is_shown_the_card_of_a_tool_that_took_long_before() -> None:
    async with Gateway({}, {"notes": notes()}) as gate:
        caller = await gate.caller("2026")
        assert cards(await caller.tools()) == {"show_tasks"}
        await caller.call("notes__slow")
        assert cards(await caller.tools()) == {"show_tasks", "notes__slow"}


@virtual_time
async def test_a_tool_with_an_interface_of_its_own_keeps_it() -> None:
    board = AppServer()
    board.app("show", "ui://board/main.html")
    board.app("refresh", "ui://board/main.html", meta={"ui": {"visibility": ["app"]}})
    async with Gateway({}, {"board": board}) as gate:
        caller = await gate.caller("2025", capabilities=RENDERS_APPS)
        assert cards(await caller.tools()) == {"board__echo", "show_tasks"}


@virtual_time
async def test_a_host_with_tasks_lists_the_tools_of_the_card() -> None:
    async with Gateway({}, {"notes": notes()}) as gate:
        caller = await gate.caller("2025", capabilities={**RENDERS_APPS, **TASKS})
        tools = {tool["name"]: tool for tool in await caller.tools()}
        assert "list_tasks" not in tools
        assert tools["cancel_task"]["_meta"]["ui"] == {"visibility": ["app"]}
        assert tools["show_tasks"]["_meta"]["ui"] == {"resourceUri": CARD}


@pytest.mark.parametrize("mode", ["search", "facade"])
@virtual_time
async def test_calls_through_search_and_facade_have_the_card(mode: str) -> None:
    scope = {"scopes": {"default": {"default_servers": ["*"], "mode": mode}}}
    async with Gateway(scope, {"notes": notes()}) as gate:
        caller = await gate.caller("2025", capabilities=RENDERS_APPS)
        run, arguments = {
            "search": ("call_tool", {"name": "notes__slow"}),
            "facade": ("execute_tool", {"server": "notes", "tool": "slow", "timeout_ms": 1000}),
        }[mode]
        assert cards(await caller.tools()) == {run, "show_tasks"}
        promoted = (await caller.call(run, arguments)).result
        assert promoted["structuredContent"]["taskgate_notice"]["kind"] == "task"
        assert cards(await (await gate.caller("2025")).tools()) == set()


@virtual_time
async def test_without_helper_tools_there_is_no_card() -> None:
    scope = {"scopes": {"default": {"default_servers": ["*"], "helper_tools": "never"}}}
    async with Gateway({**HELD, **scope}, {"notes": notes()}) as gate:
        caller = await gate.caller("2025", capabilities=RENDERS_APPS)
        tools = await caller.tools()
        assert cards(tools) == set()
        assert "show_tasks" not in names(tools)
        assert "error" in (await caller.call("show_tasks")).last


@BOTH
@virtual_time
async def test_the_page_is_self_contained_and_permits_nothing_else(generation: str) -> None:
    async with Gateway({}, {"notes": notes()}) as gate:
        caller = await gate.caller(generation)
        (content,) = (await caller.request("resources/read", {"uri": CARD})).result["contents"]
        assert (content["uri"], content["mimeType"]) == (CARD, APP_MIME)
        assert all(domains == [] for domains in content["_meta"]["ui"]["csp"].values())
        page = content["text"]
        policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[0]
        for kind in ("script", "style"):
            (inline,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
            assert f"{kind}-src 'sha256-{digest}'" in policy
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert not re.findall(
            r"\b(?:src|href)\s*=|@import|url\(|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", page
        )


@virtual_time
async def test_the_card_calls_two_tools_and_nothing_else() -> None:
    async with Gateway({}, {"notes": notes()}) as gate:
        caller = await gate.caller("2025")
        (content,) = (await caller.request("resources/read", {"uri": CARD})).result["contents"]
        script = re.findall(r"<script>(.*?)</script>", content["text"], re.DOTALL)[0]
        constants = dict(re.findall(r'const (\w+) = "(\w+)";', script))
        called = re.findall(r"\bcall\(([^,]+),", script)
        assert sorted(constants.get(name, name) for name in called if name != "name") == ["cancel_task", "show_tasks"]
        assert re.findall(r"const ALLOWED = Object.freeze\(\[([^]]*)\]\)", script) == ["SHOW, CANCEL"]
        methods = set(re.findall(r'(?:ask\(|method: )"([^"]+)"', script))
        assert methods == {
            "tools/call",
            "ui/initialize",
            "ui/open-link",
            "ui/notifications/initialized",
            "ui/notifications/request-teardown",
            "ui/notifications/size-changed",
        }


@BOTH
@virtual_time
async def test_show_tasks_returns_state_progress_and_result(generation: str) -> None:
    async with Gateway({"public_url": "https://gate.example"}, {"notes": notes()}) as gate:
        caller = await gate.caller(generation, capabilities=RENDERS_APPS)
        meta = {"taskgate/client": "one"} if generation == "2026" else {}
        sent = {"name": "notes__slow", "arguments": {"a": 1}, "_meta": {**meta, "progressToken": 7}}
        promoted = (await caller.request("tools/call", sent)).result
        task_id = promoted["structuredContent"]["taskgate_notice"]["task_id"]
        (row,) = (await caller.call_json("show_tasks", task_ids=[task_id]))["tasks"]
        assert (row["task_id"], row["status"], row["server"], row["tool"]) == (task_id, "working", "notes", "slow")
        assert (row["progress"], row["progress_total"]) == (3, 10)
        assert row["console_url"] == f"https://gate.example/tasks/{task_id}"
        assert "args" not in row
        await gate.advance(100)
        listed = (await caller.request("tools/call", {"name": "show_tasks", "arguments": {}, "_meta": meta})).result
        (ended,) = listed["structuredContent"]["tasks"]
        assert (ended["status"], ended["result"]) == ("completed", HOSTILE)
        assert HOSTILE not in listed["content"][0]["text"]


@virtual_time
async def test_show_tasks_returns_a_held_call_and_its_question() -> None:
    server = notes()

    @server.tool("ask")
    async def ask(call: Call) -> str:
        form = {"type": "object", "properties": {"size": {"type": "string"}}}
        answer = await call.ask("elicitation/create", {"message": HOSTILE, "requestedSchema": form})
        return str(answer)

    async with Gateway(HELD, {"notes": server}) as gate:
        caller = await gate.caller("2025", capabilities=RENDERS_APPS)
        held = (await caller.call("notes__wipe")).result["structuredContent"]["taskgate_notice"]["task_id"]
        asking = (await caller.call("notes__ask")).result["structuredContent"]["taskgate_notice"]["task_id"]
        waiting, asked = (await caller.call_json("show_tasks", task_ids=[held, asking]))["tasks"]
        assert (waiting["status"], waiting["waiting_for"]) == ("working", "approval")
        assert asked["questions"] == [{"message": HOSTILE, "fields": ["size"]}]
        assert server.count("wipe") == 0


@BOTH
@virtual_time
async def test_tasks_of_others_are_shown_as_unknown_ones(generation: str) -> None:
    tokens = [
        {"id": who, "sha256": hashlib.sha256(f"{who}-token-0123456789abcdef".encode()).hexdigest()}
        for who in ("ann", "bob")
    ]
    async with Gateway({"tokens": tokens}, {"notes": notes()}) as gate:
        ann = await gate.caller("2025", token="ann-token-0123456789abcdef", capabilities=RENDERS_APPS)
        bob = await gate.caller(generation, token="bob-token-0123456789abcdef", capabilities=RENDERS_APPS)
        task_id = (await ann.call("notes__slow")).result["structuredContent"]["taskgate_notice"]["task_id"]
        (row,) = (await bob.call_json("show_tasks", task_ids=[task_id]))["tasks"]
        assert row == {"task_id": task_id, "status": "expired", "server": "", "tool": "", "created_at": ""}
        assert (await bob.call_json("show_tasks"))["tasks"] == []


@virtual_time
async def test_showing_a_held_task_never_decides_it() -> None:
    """No tool of the gateway accepts a decision that an app sends through its host."""
    server = notes()
    async with Gateway(HELD, {"notes": server}) as gate:
        caller = await gate.caller("2025", capabilities=RENDERS_APPS)
        held = (await caller.call("notes__wipe")).result["structuredContent"]["taskgate_notice"]["task_id"]
        (waiting,) = (await gate.operator("GET", "/api/approvals")).json()
        for tool in names(await caller.tools()):
            assert "approv" not in tool
        await caller.call("show_tasks", {"task_ids": [held], "approve": True})
        for request_id in (waiting["id"], held):
            given = {"request_id": request_id, "task_id": held, "action": "accept", "content": {"decision": "approve"}}
            assert (await caller.call("respond_to_elicitation", given)).result["isError"] is True
        await gate.advance(1)
        (still,) = (await gate.operator("GET", "/api/approvals")).json()
        assert (still["id"], still["state"]) == (waiting["id"], "open")
        assert server.count("wipe") == 0
