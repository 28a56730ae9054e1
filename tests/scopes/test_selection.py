"""Which tools a caller sees and may call: by URL, token, query, headers and `_meta`, in both generations."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.harness.gateway import Gateway, running_gateway
from tests.scopes.scope_client import GENERATIONS, STATEFUL, STATELESS, opened, scope, server, unopened_client

ANN, OPS, BOB = "ann-token", "ops-token", "bob-token"


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


CONFIG: dict[str, Any] = {
    "schema": 1,
    "servers": {
        "files": server("files", "read", "write", "delete"),
        "git": server("git", "log", "push"),
        "mail": server("mail", "send"),
    },
    "scopes": {
        "review": scope("files", allowed_servers=["files", "git"], tool_denylist=["delete"]),
        "post": scope("mail"),
        "empty": scope("files", tool_allowlist=[]),
        "closed": {"default_servers": ["*"], "enabled": False},
    },
}
TOKENS = [
    {"id": "ann", "sha256": digest(ANN), "scope": "review"},
    {"id": "ops", "sha256": digest(OPS), "roles": ["operator"]},
    {"id": "bob", "sha256": digest(BOB)},
]
REVIEW = ["files__read", "files__write"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(CONFIG) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded() -> AsyncIterator[Gateway]:
    """The same with tokens, so that every request needs one."""
    async with running_gateway({**CONFIG, "tokens": TOKENS}) as running:
        yield running


pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.virtual_time]


@pytest.mark.parametrize("version", GENERATIONS)
async def test_two_callers_on_one_gateway_see_and_call_different_sets(gateway: Gateway, version: str) -> None:
    async with opened(f"{gateway.url}/review", version) as ann, opened(f"{gateway.url}/post", version) as bob:
        assert await ann.tools() == REVIEW
        assert await bob.tools() == ["mail__send"]
        assert (await ann.call("files__read")).text == "files:read"
        assert (await bob.call("mail__send")).text == "mail:send"


@pytest.mark.parametrize("version", GENERATIONS)
@pytest.mark.parametrize(
    "guess",
    [
        "mail__send",
        "git__log",
        "files__delete",
        "mcp.mail.send",
        "mcp__bWFpbA__c2VuZA",
        "send",
        "nowhere__x",
    ],
)
async def test_hidden_and_unknown_tools_get_the_same_error(gateway: Gateway, version: str, guess: str) -> None:
    async with opened(f"{gateway.url}/review", version) as ann:
        error = (await ann.call(guess)).error
        unknown = (await ann.call("nowhere__y")).error
    assert error["code"] == -32602
    assert error["data"]["error_type"] == "unknown_tool"
    assert error["data"]["executed"] == "no"
    assert error["message"] == unknown["message"].replace("nowhere__y", guess), "hidden and unknown names look the same"


@pytest.mark.parametrize("version", GENERATIONS)
async def test_both_aliases_of_a_visible_tool_are_accepted(gateway: Gateway, version: str) -> None:
    async with opened(f"{gateway.url}/review", version) as ann:
        assert (await ann.call("mcp.files.read")).text == "files:read"
        assert (await ann.call("mcp__ZmlsZXM__cmVhZA")).text == "files:read"


@pytest.mark.parametrize("version", GENERATIONS)
async def test_a_token_is_limited_to_its_scope(guarded: Gateway, version: str) -> None:
    async with opened(guarded.url, version, ANN) as ann:
        assert await ann.tools() == REVIEW
    async with unopened_client(f"{guarded.url}/post", version, ANN) as ann:
        assert (await ann.ask("tools/list")).status == 404


@pytest.mark.parametrize("version", GENERATIONS)
async def test_a_query_and_headers_narrow_together(gateway: Gateway, version: str) -> None:
    async with opened(f"{gateway.url}/review?servers=git,files&tools=-write", version) as ann:
        assert await ann.tools() == ["files__read", "git__log", "git__push"]
    headers = {"X_Taskgate_Servers": "git", "X_Taskgate_Tools": "l*"}
    async with opened(f"{gateway.url}/review?servers=git,files", version, **headers) as ann:
        assert await ann.tools() == ["git__log"]
        assert (await ann.call("git__push")).error["data"]["error_type"] == "unknown_tool"


async def test_meta_on_initialize_narrows_a_session(gateway: Gateway) -> None:
    async with unopened_client(f"{gateway.url}/review", STATEFUL) as ann:
        await ann.open({"taskgate/servers": ["git"], "taskgate/tools": "log"})
        assert await ann.tools() == ["git__log"]


@pytest.mark.parametrize("version", GENERATIONS)
@pytest.mark.parametrize("narrowing", ["?servers=mail", "?servers=files,nowhere"])
async def test_narrowing_beyond_the_scope_is_refused_with_a_reason(
    gateway: Gateway, version: str, narrowing: str
) -> None:
    async with unopened_client(f"{gateway.url}/review{narrowing}", version) as ann:
        reply = await ann.open() if version == STATEFUL else await ann.ask("tools/list")
    assert reply is not None
    data = reply.error["data"]
    assert (reply.error["code"], data["error_type"], data["reason"]) == (-32602, "not_allowed", "not_allowed")
    assert data["executed"] == "no"
    assert "mail" not in reply.error["message"] or "mail" in narrowing


@pytest.mark.parametrize("version", GENERATIONS)
@pytest.mark.parametrize(
    ("narrowing", "error_type"),
    [
        ("?tools=" + "a" * 9000, "bad_scope_request"),
        ("?tools=%5Bx", "bad_pattern"),
        ("?servers=%5B", "bad_pattern"),
        ("?tools=" + "x," * 300, "bad_scope_request"),
        ("?servers=%FF", "bad_scope_request"),
    ],
)
async def test_malformed_narrowing_is_refused(gateway: Gateway, version: str, narrowing: str, error_type: str) -> None:
    async with unopened_client(f"{gateway.url}/review{narrowing}", version) as ann:
        reply = await ann.open() if version == STATEFUL else await ann.ask("tools/list")
    assert reply is not None
    assert reply.error["data"]["error_type"] == error_type


@pytest.mark.parametrize("version", GENERATIONS)
@pytest.mark.parametrize("path", ["/revew", "/closed", "", "/v1", "/%2e%2e", "/re%00view"])
async def test_an_unknown_scope_is_not_found_and_only_operators_get_a_hint(
    guarded: Gateway, version: str, path: str
) -> None:
    async with (
        unopened_client(f"{guarded.url}{path}", version, BOB) as unauthorized,
        unopened_client(f"{guarded.url}/nowhere", version, BOB) as elsewhere,
        unopened_client(f"{guarded.url}{path}", version, OPS) as operator,
    ):
        refused, hinted = await unauthorized.ask("tools/list"), await operator.ask("tools/list")
        unknown = await elsewhere.ask("tools/list")
    assert (refused.status, hinted.status) == (404, 404)
    assert refused.error["message"] == unknown.error["message"], "an existing scope looks like one that does not exist"
    assert len(hinted.error["message"]) > len(refused.error["message"])
    if path == "/revew":
        assert "'review'" in hinted.error["message"]
    if path == "/closed":
        assert "switched off" in hinted.error["message"]


@pytest.mark.parametrize("version", GENERATIONS)
async def test_an_empty_set_of_tools_causes_a_warning(gateway: Gateway, version: str) -> None:
    async with opened(f"{gateway.url}/empty", version) as ann:
        assert await ann.tools() == []
        assert (await ann.call("files__read")).error["data"]["error_type"] == "unknown_tool"
    assert "scope is empty" in gateway.log
    assert "deny_all" in gateway.log


async def test_a_wrong_token_is_refused_before_anything_else(guarded: Gateway) -> None:
    async with unopened_client(f"{guarded.url}/review", STATELESS, "guess") as unauthorized:
        assert (await unauthorized.ask("tools/list")).status == 401


async def test_log_and_metrics_contain_the_effective_set(gateway: Gateway) -> None:
    async with opened(f"{gateway.url}/review", STATEFUL) as ann:
        await ann.tools()
        metrics = (await ann.http.get(f"{gateway.base}/metrics")).text
    assert '"event": "session opened"' in gateway.log or "session opened" in gateway.log
    assert '"servers": ["files"]' in gateway.log
    assert '"git": "not_selected"' in gateway.log
    assert '"mail": "not_allowed"' in gateway.log
    assert 'taskgate_mcp_injection_total{server_id="files",status="success"}' in metrics
    assert 'taskgate_mcp_denied_reason_total{reason="not_allowed",server_id="mail"}' in metrics
    assert 'taskgate_mcp_list_tools_latency_seconds_count{server_id="files"}' in metrics
