"""`/ready` and `/metrics` name servers and tools only to callers who may see them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.access.config_tokens import token
from tests.virtual_time import Gateway, Upstream, virtual_time

from taskgate.store.operations.audit import AuditRows

TOKENS = [token("agent"), {**token("prometheus"), "roles": ["viewer"], "may_call": False}]
SECRET = "payroll"


async def shown(gate: Gateway, path: str, name: str = "", **headers: str) -> str:
    if name:
        headers["authorization"] = f"Bearer {name}-token"
    reply = await gate.http("GET", path, headers=headers).done()
    assert reply.status == 200
    return reply.body.decode()


async def worked(gate: Gateway, **options: Any) -> None:
    caller = await gate.caller("2025", **options)
    await caller.call(f"{SECRET}__echo", {"text": "x"})
    await gate.advance(11)


@pytest.mark.parametrize("path", ["/ready", "/readyz", "/metrics"])
@virtual_time
async def test_with_tokens_only_a_role_that_may_see_gets_names(path: str) -> None:
    async with Gateway({"tokens": TOKENS}, {SECRET: Upstream("2025")}) as gate:
        await worked(gate, token="agent-token")
        for name in ("", "agent", "unknown"):
            assert SECRET not in await shown(gate, path, name)
        assert SECRET in await shown(gate, path, "prometheus")
        operator = await gate.operator("GET", path)
        assert SECRET in operator.body.decode()
        if path == "/metrics":
            openmetrics = await shown(gate, path, accept="application/openmetrics-text")
            assert SECRET not in openmetrics


@pytest.mark.parametrize(
    ("names", "tokens", "named"),
    [(None, False, True), (None, True, False), ("all", True, True), ("see", False, False)],
)
@virtual_time
async def test_the_setting_decides_and_the_default_is_see_where_identity_is_required(
    names: str | None, tokens: bool, named: bool
) -> None:
    config = {"telemetry": {"names": names} if names else {}, "tokens": TOKENS if tokens else []}
    async with Gateway(config, {SECRET: Upstream("2025")}) as gate:
        await worked(gate, **({"token": "agent-token"} if tokens else {}))
        assert [SECRET in await shown(gate, path) for path in ("/ready", "/metrics")] == [named, named]
        await gate.reload({**config, "telemetry": {"names": "all"}})
        assert SECRET in await shown(gate, "/ready")


@virtual_time
async def test_numbers_without_names_are_the_sums_of_those_with_names() -> None:
    upstreams = {SECRET: Upstream("2025"), "files": Upstream("2025")}
    async with Gateway({"tokens": TOKENS}, upstreams) as gate:
        caller = await gate.caller("2025", token="agent-token")
        for server in (SECRET, "files", "files"):
            await caller.call(f"{server}__echo", {"text": "x"})
        await gate.advance(11)
        stranger, viewer = await shown(gate, "/metrics"), await shown(gate, "/metrics", "prometheus")
        assert "taskgate_usage_calls_total 3.0" in stranger
        assert 'taskgate_usage_calls_total{server="files"} 2.0' in viewer
        assert 'taskgate_calls_ended_total{outcome="ok"} 3.0' in stranger
        assert "taskgate_mcp_list_tools_latency_seconds_count 2.0" in stranger
        without = {line.split("{")[0].split(" ")[0] for line in stranger.splitlines()}
        assert without == {line.split("{")[0].split(" ")[0] for line in viewer.splitlines()}
        for label in ("server=", "server_id=", "tool="):
            assert label not in stranger


@virtual_time
async def test_readiness_for_strangers_has_states_without_names() -> None:
    async with Gateway({"tokens": TOKENS}, {SECRET: Upstream("2025")}) as gate:
        state = (await gate.http("GET", "/ready").done()).json()
        assert state.keys() == {"ready", "degraded", "sessions", "server_states", "store"}
        assert (state["ready"], state["store"], sum(state["server_states"].values())) == (True, None, 1)


@virtual_time
async def test_wrong_tokens_at_the_probes_count_as_failed_attempts() -> None:
    async with Gateway({"tokens": TOKENS}, {SECRET: Upstream("2025")}) as gate:
        for number in range(60):
            await shown(gate, "/ready", f"guess-{number}")
        refused = await gate.http("GET", "/api/v1/tasks", headers={"authorization": "Bearer guess"}).done()
        assert refused.status == 429
        assert SECRET in await shown(gate, "/ready", "prometheus"), "a known token is not held up"
        await gate.advance(2)
        rows = [row.entry.event for row in await gate.life.app.store.ask(AuditRows(0, 100))]
        assert "access_denied" not in rows
