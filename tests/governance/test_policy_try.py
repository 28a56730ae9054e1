"""`taskgate policy test` gives the answer that a call gets, for names as clients see them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.assembly.try_call import Tried, try_call
from taskgate.core.errors import CallerError
from taskgate.core.governance.decision import action_of
from taskgate.core.identity.caller import Caller

GOVERNANCE = {"rules": [{"match": "delete_*", "action": "approve"}, {"match": "drop_*", "action": "deny"}]}
SCOPES: dict[str, dict[str, Any]] = {
    "prefixed": {"default_servers": ["*"], "tool_denylist": ["secret_*"]},
    "plain": {"default_servers": ["files"], "allowed_servers": ["files"], "names": "plain"},
    "one": {"default_servers": ["files"], "allowed_servers": ["files"]},
}
CONFIG: dict[str, Any] = {
    "governance": GOVERNANCE,
    "scopes": SCOPES,
    "servers": {"files": {"expose": {"mode": "blocklist", "tools": ["hidden_*"]}}},
    "approval": {"default": {"channels": ["inbox"], "timeout": "1s"}},
}
TOOLS = ("read_file", "delete_file", "drop_file", "secret_file", "hidden_file")


def a_server() -> Upstream:
    server = Upstream("2025")
    for name in TOOLS:

        async def run(call: Call) -> str:
            return "done"

        server.tool(name, run, inputSchema={"type": "object", "properties": {"path": {"type": "string"}}})
    return server


async def tried(gate: Gateway, scope: str, name: str, arguments: bytes = b"{}", *, connect: bool = True) -> Tried:
    app = gate.life.app
    return await try_call(app.loaded, app.plan, name, arguments, Caller(scope=scope), connect=connect)


async def happens(gate: Gateway, scope: str, name: str) -> str:
    """The actual outcome of a call with that name."""
    caller = await gate.caller("2025", scope=scope)
    await caller.tools()
    call = caller.begin_call(name)
    await gate.advance(0.5)
    if (await gate.operator("GET", "/api/v1/approvals")).json():
        await gate.advance(2)
        return "approve"
    return "deny" if "error" in (await call.done()).last else "forward"


@pytest.mark.parametrize("profile", ["production", "development"])
@pytest.mark.parametrize("scope", SCOPES)
@virtual_time
async def test_name_as_clients_see_it_is_decided_as_its_call(scope: str, profile: str) -> None:
    servers = ("files",) if scope == "plain" else ("files", "bank")
    async with Gateway({**CONFIG, "profile": profile}, {"files": a_server(), "bank": a_server()}) as gate:
        for server, own in itertools.product(servers, TOOLS):
            name = own if scope == "plain" else f"{server}__{own}"
            found = await tried(gate, scope, name)
            assert action_of(found.last).value == await happens(gate, scope, name), name
            assert (found.subject.server, found.subject.name) == (server, own)
            assert (await tried(gate, scope, f"{server}:{own}")).last == found.last


@pytest.mark.parametrize(
    "name", ["files__nothing", "nothing", "files:nothing", "elsewhere__read_file", "files:prompt:nothing"]
)
@virtual_time
async def test_name_that_matches_nothing_is_rejected(name: str) -> None:
    async with Gateway(CONFIG, {"files": a_server(), "bank": a_server()}) as gate:
        with pytest.raises(CallerError) as refused:
            await tried(gate, "prefixed", name)
        assert refused.value.error_type == "unknown_tool"


@virtual_time
async def test_unlisted_name_is_rejected_with_plain_names_too() -> None:
    async with Gateway(CONFIG, {"files": a_server(), "bank": a_server()}) as gate:
        with pytest.raises(CallerError):
            await tried(gate, "plain", "read_fiel")
        assert action_of((await tried(gate, "plain", "drop_x", connect=False)).last).value == "deny"


@virtual_time
async def test_own_name_that_two_servers_have_is_rejected_with_both() -> None:
    async with Gateway(CONFIG, {"files": a_server(), "bank": a_server()}) as gate:
        with pytest.raises(CallerError, match=r"files:read_file, bank:read_file"):
            await tried(gate, "prefixed", "read_file")


@virtual_time
async def test_without_connecting_only_the_name_is_checked() -> None:
    async with Gateway(CONFIG, {"files": a_server(), "bank": a_server()}) as gate:
        found = await tried(gate, "prefixed", "files__delete_anything", connect=False)
        assert (action_of(found.last).value, found.subject.is_listed) == ("approve", False)
        assert len(found.notes) == 1
        assert action_of((await tried(gate, "prefixed", "files__secret_x", connect=False)).last).value == "deny"


@virtual_time
async def test_invalid_arguments_are_reported() -> None:
    async with Gateway(CONFIG, {"files": a_server(), "bank": a_server()}) as gate:
        assert (await tried(gate, "prefixed", "files__delete_file")).notes == ()
        assert len((await tried(gate, "prefixed", "files__delete_file", b'{"path": 5}')).notes) == 1


@virtual_time
async def test_call_is_decided_by_the_risk_that_the_server_declares() -> None:
    server = Upstream("2025")

    async def run(call: Call) -> str:
        return "done"

    server.tool("look", run, annotations={"readOnlyHint": True})
    server.tool("wipe", run, annotations={"destructiveHint": True})
    rules = [{"match": "*", "when": {"risk": ">= undeclared"}, "action": "deny"}]
    config = {"governance": {"rules": rules}, "servers": {"files": {"trust_annotations": True}}}
    async with Gateway(config, {"files": server}) as gate:
        found = {name: (await tried(gate, "default", f"files:{name}")).last for name in ("look", "wipe")}
    assert {name: action_of(decision).value for name, decision in found.items()} == {"look": "forward", "wipe": "deny"}
    assert found["wipe"].because == "risk >= undeclared"
