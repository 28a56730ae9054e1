"""A scheduler creates a scope for one task, with its own URL and token, which expire."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, settle, virtual_time

from taskgate.store.operations.audit import AuditRows

MAP = {
    "mcp.enabled": "true",
    "mcp.default_server_ids": '["files"]',
    "mcp.tool_denylist": "delete_*, drop_*",
    "scheduler.image": "not ours",
}
AGENT = "agent-token-0123456789abcdef"
TOKENS = {"tokens": [{"id": "agent", "sha256": hashlib.sha256(AGENT.encode()).hexdigest()}]}


def server(*names: str) -> Upstream:
    made = Upstream("both")
    for name in names:

        @made.tool(name)
        async def tool(call: Call) -> str:
            return "done"

    return made


def servers() -> dict[str, Upstream]:
    return {"files": server("read", "delete_all"), "mail": server("send")}


async def handed_over(gate: Gateway, config: dict[str, str] = MAP, **more: Any) -> dict[str, Any]:
    reply = await gate.operator("POST", "/api/v1/scopes", {"config": config, **more})
    assert reply.status == 201, reply.body
    made: dict[str, Any] = reply.json()
    return made


async def status_of(gate: Gateway, path: str, token: str | None) -> int:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    return (
        await gate.http("POST", path, body, {"accept": "application/json, text/event-stream", **headers}).done()
    ).status


@pytest.mark.parametrize("config", [{}, TOKENS], ids=["anonymous gateway", "gateway with tokens"])
@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_only_the_token_bearer_sees_the_scope(config: Any, generation: str) -> None:
    async with Gateway(config, servers()) as gate:
        made = await handed_over(gate, label="task 7", lifetime_ms=60_000)
        assert (made["servers"], made["temporary"], made["label"]) == (["files"], True, "task 7")
        assert made["url"] == f"{gate.base}/mcp/{made['scope']}"
        for scope in (made["scope"], ""):
            caller = await gate.caller(generation, scope=scope, token=made["token"])
            names = [tool["name"] for tool in await caller.tools()]
            assert [name for name in names if "__" in name] == ["files__echo", "files__read"]
            assert (await caller.call("files__read")).text == "done"
            assert (await caller.call("files__delete_all")).error["data"]["error_type"] == "unknown_tool"
        assert await status_of(gate, f"/mcp/{made['scope']}", None) == 401
        if config:
            assert await status_of(gate, f"/mcp/{made['scope']}", AGENT) == 404
        assert await status_of(gate, "/mcp/default", made["token"]) == 404


@virtual_time
async def test_scope_expires_and_its_token_becomes_invalid() -> None:
    """Anonymous scopes are refused too: the holder would otherwise see more than its scope."""
    async with Gateway({}, servers()) as gate:
        made = await handed_over(gate, lifetime_ms=10_000)
        caller = await gate.caller("2025", token=made["token"])
        stream = await caller.listen()
        newer = await gate.caller("2026", token=made["token"])
        listening = await newer.listen(toolsListChanged=True)
        await gate.advance(9)
        assert (await caller.call("files__read")).text == "done"
        await gate.advance(2)
        for path in ("/mcp", f"/mcp/{made['scope']}"):
            assert await status_of(gate, path, made["token"]) == 401
        await settle()
        assert stream.is_done
        assert listening.is_done
        assert [row["scope"] for row in (await gate.operator("GET", "/api/v1/scopes")).json()["scopes"]] == ["default"]


@virtual_time
async def test_scope_survives_a_crash_but_not_its_expiry() -> None:
    async with Gateway({}, servers()) as gate:
        long, short = await handed_over(gate, lifetime_ms=60_000), await handed_over(gate, lifetime_ms=5_000)
        gate.crash()
        await gate.advance(10)
        await gate.start()
        caller = await gate.caller("2025", token=long["token"])
        assert (await caller.call("files__read")).text == "done"
        assert await status_of(gate, "/mcp", short["token"]) == 401
        listed = (await gate.operator("GET", "/api/v1/scopes")).json()["scopes"]
        assert [row["scope"] for row in listed if row["temporary"]] == [long["scope"]]
        rows = await gate.life.app.store.ask(AuditRows())
        received = [
            (row.entry.event, row.entry.scope, row.entry.principal) for row in rows if "scope_" in row.entry.event
        ]
        assert received == [
            ("scope_handed_over", long["scope"], "operator"),
            ("scope_handed_over", short["scope"], "operator"),
            ("scope_ended", short["scope"], ""),
        ]


@virtual_time
async def test_operator_can_list_and_end_a_scope() -> None:
    async with Gateway({}, servers()) as gate:
        made = await handed_over(gate)
        shown = (await gate.operator("GET", f"/api/v1/scopes/{made['scope']}")).json()
        assert (shown["config"], shown["excluded"]) == (MAP, {"mail": "not_allowed"})
        assert "token" not in shown
        assert (await gate.operator("DELETE", f"/api/v1/scopes/{made['scope']}")).status == 200
        assert (await gate.operator("DELETE", f"/api/v1/scopes/{made['scope']}")).status == 404
        assert (await gate.operator("DELETE", "/api/v1/scopes/default")).status == 409
        assert await status_of(gate, "/mcp", made["token"]) == 401


@virtual_time
async def test_reload_keeps_temporary_and_other_scopes() -> None:
    config: dict[str, Any] = {"profiles": {"work": {"servers": ["files", "mail"]}}}
    by_profile = {
        "mcp.enabled": "true",
        "mcp.profile": "work",
        "mcp.profile_overrides": '{"exclude_servers": ["mail"]}',
        "mcp.names": "plain",
        "mcp.mode": "direct",
        "mcp.helper_tools": "never",
    }
    async with Gateway(config, servers()) as gate:
        bystander = await gate.caller("2025")
        stream = await bystander.listen()
        await bystander.tools()
        made = await handed_over(gate, by_profile)
        caller = await gate.caller("2025", token=made["token"])
        assert [tool["name"] for tool in await caller.tools()] == ["echo", "read", "delete_all"]
        await settle()
        assert not [message for message in stream.reply.messages if "list_changed" in str(message)]
        await gate.reload({**config, "governance": {"rules": [{"match": "delete_*", "action": "deny"}]}})
        assert [tool["name"] for tool in await caller.tools()] == ["echo", "read"]
        await gate.reload({})
        assert await caller.tools() == []


@virtual_time
async def test_held_call_of_an_ended_scope_is_not_sent() -> None:
    config = {"governance": {"rules": [{"match": "read", "action": "approve"}]}}
    upstreams = servers()
    async with Gateway(config, upstreams) as gate:
        made = await handed_over(gate)
        caller = await gate.caller("2025", token=made["token"])
        task = await caller.call("files__read", task={"ttl": 60000})
        assert task.result["task"]["status"] in ("working", "input_required")
        (approval,) = (await gate.operator("GET", "/api/approvals")).json()
        await gate.operator("DELETE", f"/api/v1/scopes/{made['scope']}")
        await gate.operator("POST", f"/api/approvals/{approval['id']}/approve", {})
        await gate.advance(60)
        assert upstreams["files"].count("read") == 0


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "config"),
        ({"config": {"mcp.enabled": True}}, "map of strings"),
        ({"config": MAP, "lifetime_ms": "1h"}, "lifetime_ms"),
        ({"config": MAP, "lifetime_ms": 999}, "lifetime_ms"),
        ({"config": MAP, "lifetime_ms": 10**12}, "lifetime_ms"),
        ({"config": MAP, "ttl": 5}, "config"),
        ({"config": {**MAP, "mcp.enabeld": "true"}}, "Did you mean 'mcp.enabled'?"),
        ({"config": {"mcp.default_server_ids": "files"}}, "mcp.enabled"),
        ({"config": {**MAP, "mcp.profile": "nope"}}, "profile"),
        ({"config": MAP, "label": "x" * 201}, "too long"),
    ],
)
@virtual_time
async def test_invalid_request_gets_an_error_and_creates_no_scope(body: Any, text: str) -> None:
    async with Gateway({}, servers()) as gate:
        refused = await gate.operator("POST", "/api/v1/scopes", body)
        assert (refused.status, text in refused.json()["error"]) == (400, True), refused.body
        assert len((await gate.operator("GET", "/api/v1/scopes")).json()["scopes"]) == 1


@virtual_time
async def test_only_operators_may_manage_scopes() -> None:
    ann = "ann-token-0123456789abcdef"
    tokens = [
        *TOKENS["tokens"],
        {"id": "ann", "sha256": hashlib.sha256(ann.encode()).hexdigest(), "roles": ["approver"]},
    ]
    async with Gateway({"tokens": tokens}, servers()) as gate:
        made = await handed_over(gate)
        for token in (AGENT, ann, made["token"]):
            headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            for method, path in (
                ("POST", ""),
                ("GET", ""),
                ("DELETE", f"/{made['scope']}"),
                ("GET", f"/{made['scope']}"),
            ):
                reply = await gate.http(method, f"/api/v1/scopes{path}", {"config": MAP}, headers).done()
                assert reply.status == 403, (token, method)
        assert (await gate.http("DELETE", f"/api/v1/scopes/{made['scope']}").done()).status == 401
        assert (await gate.http("DELETE", "/approvals").done()).status == 405


@virtual_time
async def test_number_of_scopes_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskgate.gateway.methods.temporary_scopes.MAX_SCOPES", 2)
    async with Gateway({}, servers()) as gate:
        for _ in range(2):
            await handed_over(gate, lifetime_ms=2_000)
        assert "end some first" in (await gate.operator("POST", "/api/v1/scopes", {"config": MAP})).json()["error"]
        await gate.advance(4)
        await handed_over(gate)
