"""Operators list and stop the scripts of others."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from tests.scripts.test_running_scripts import ON, shop, started, structured
from tests.virtual_time import Gateway, virtual_time

from taskgate.store.operations.audit import AuditRows

SCOPES = {
    "scopes": {
        "default": {"default_servers": ["*"], "scripts": "on"},
        "other": {"default_servers": ["*"], "scripts": "on"},
    },
    "tokens": [
        *({"id": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("ann", "bob")),
        {"id": "viewer", "sha256": hashlib.sha256(b"viewer").hexdigest(), "roles": ["viewer"], "may_call": False},
    ],
}
LONG = "await shop.buy(n=1)\nawait sleep(600)\nawait shop.buy(n=2)"


async def stop(gate: Gateway, **which: Any) -> list[dict[str, Any]]:
    reply = await gate.operator("POST", "/api/v1/scripts/stop", which)
    assert reply.status == 200, reply.body
    rows: list[dict[str, Any]] = reply.json()["stopped"]
    return rows


async def running(gate: Gateway, query: str = "") -> set[str]:
    return {row["id"] for row in (await gate.operator("GET", f"/api/v1/scripts{query}")).json()["scripts"]}


@virtual_time
async def test_scripts_are_stopped_by_principal_by_scope_and_all() -> None:
    store = shop()
    async with Gateway(SCOPES, {"shop": store}) as gate:
        ann, bob = await gate.caller("2025", token="ann"), await gate.caller("2025", token="bob")
        other = await gate.caller("2025", token="bob", scope="other")
        of_ann, of_bob = await started(gate, ann, LONG), await started(gate, bob, LONG)
        in_other = await started(gate, other, LONG)
        await gate.advance(5)
        assert await running(gate) == {of_ann, of_bob, in_other}
        assert await running(gate, "?principal=bob&scope=other") == {in_other}
        [stopped] = await stop(gate, principal="ann", reason="sends too much")
        assert (stopped["id"], stopped["state"], stopped["ran"]) == (
            of_ann,
            "cancelled",
            "executed, or sent: shop__buy (1)",
        )
        assert [row["id"] for row in await stop(gate, scope="other")] == [in_other]
        assert await running(gate) == {of_bob}
        assert [row["id"] for row in await stop(gate, all=True)] == [of_bob]
        assert await stop(gate, all=True) == []
        await gate.advance(1_200)
        assert store.count("buy") == 3


@virtual_time
async def test_stopped_script_has_a_row_in_the_audit_log_with_who_and_what_ran() -> None:
    async with Gateway(SCOPES, {"shop": shop()}) as gate:
        task = await started(gate, await gate.caller("2025", token="ann"), LONG)
        await gate.advance(5)
        await stop(gate, principal="ann", reason="sends too much")
        rows = await gate.life.app.store.ask(AuditRows(0, 1_000))
        [entry] = [row.entry for row in rows if row.entry.event == "script_stopped"]
        assert (entry.principal, entry.task_id, entry.executed) == ("ann", task, "yes")
        assert entry.reason.startswith("by operator: sends too much")
        assert "shop__buy (1)" in entry.reason


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
async def test_reply_of_a_stopped_script_states_how_to_resume_it(generation: str) -> None:
    """Also a caller that made a plain call, and has no other way to know the task."""
    store = shop()
    async with Gateway(SCOPES, {"shop": store}) as gate:
        ann = await gate.caller(generation, token="ann")
        plain = ann.begin_call("run_script", {"code": LONG})
        await gate.advance(5)
        [stopped] = await stop(gate, principal="ann", reason="sends too much")
        reply = await plain.done()
        assert reply.result["isError"] is True
        assert "sends too much" in reply.text
        assert f'resume_of="{stopped["id"]}"' in reply.text
        again = {"code": "await shop.buy(n=1)", "resume_of": stopped["id"]}
        assert structured((await ann.call("run_script", again)).result)["result"] == "bought 1"
        assert store.count("buy") == 1


@virtual_time
@pytest.mark.parametrize("body", [{}, {"all": True, "scope": "default"}, {"all": 1}, {"principal": 1}, {"task": "x"}])
async def test_stopping_needs_to_say_which(body: dict[str, Any]) -> None:
    async with Gateway(SCOPES, {"shop": shop()}) as gate:
        task = await started(gate, await gate.caller("2025", token="ann"), LONG)
        await gate.advance(5)
        assert (await gate.operator("POST", "/api/v1/scripts/stop", body)).status == 400
        assert await running(gate) == {task}


@virtual_time
async def test_viewer_sees_scripts_and_cannot_stop_them() -> None:
    async with Gateway({**SCOPES, **ON, "tokens": SCOPES["tokens"]}, {"shop": shop()}) as gate:
        await started(gate, await gate.caller("2025", token="ann"), LONG)
        await gate.advance(5)
        headers = {"authorization": "Bearer viewer"}
        seen = await gate.http("GET", "/api/v1/scripts", None, headers).done()
        assert len(json.loads(seen.body)["scripts"]) == 1
        assert (await gate.http("POST", "/api/v1/scripts/stop", {"all": True}, headers).done()).status == 403
        assert len(await running(gate)) == 1
