"""Refusals are recorded, and every exported metric changes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from tests.harness.narrow import present
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.store.operations.audit import AuditRows

SCOPES: dict[str, Any] = {
    "governance": {"rules": [{"match": "drop_*", "action": "deny"}]},
    "scopes": {"default": {"default_servers": ["*"], "tool_denylist": ["secret_*"]}},
}


def notes_server() -> Upstream:
    notes = Upstream("2025")

    @notes.tool("read")
    async def read(call: Call) -> str:
        return "text"

    @notes.tool("secret_read")
    async def secret_read(call: Call) -> str:
        return "text"

    @notes.tool("drop_all")
    async def drop_all(call: Call) -> str:
        return "gone"

    @notes.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(60)
        return "done"

    return notes


async def metrics_of(gate: Gateway) -> dict[str, float]:
    text = (await gate.http("GET", "/metrics").done()).body.decode()
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def family(sample: str) -> str:
    return re.sub(r"_(total|count|sum|bucket|created)$", "", re.split(r"[{ ]", sample)[0])


async def denials_in_audit(gate: Gateway) -> list[Any]:
    await gate.advance(2)
    rows = [row.entry for row in await gate.life.app.store.ask(AuditRows(0, 1000))]
    return [entry for entry in rows if entry.event in ("denied", "call_denied")]


@pytest.mark.parametrize("name", ["notes__secret_read", "notes__drop_all", "notes__nothing", "elsewhere__read"])
@virtual_time
async def test_a_refused_call_leaves_a_log_line_an_audit_row_and_a_count(name: str) -> None:
    notes = notes_server()
    async with Gateway(SCOPES, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        before = await metrics_of(gate)
        refused = await caller.call(name)
        assert refused.error is not None
        (entry,) = await denials_in_audit(gate)
        assert (entry.principal, entry.scope, entry.executed) == ("anonymous", "default", "no")
        assert entry.name in (name, name.removeprefix("notes__"))
        assert entry.reason
        received = [line for line in gate.log if line.event == "denied"]
        assert len(received) == 1
        after = await metrics_of(gate)
        grown = {key for key in after if key.startswith("taskgate_denied_total") and after[key] > before.get(key, 0)}
        assert len(grown) == 1
        assert notes.ran == []


TRUE_REASONS: dict[str, Any] = {
    "governance": {
        "rules": [{"match": "drop_*", "action": "deny"}, {"match": "resource:note://secret/*", "action": "deny"}]
    },
    "scopes": {
        "default": {
            "allowed_servers": ["notes"],
            "default_servers": ["notes"],
            "tool_denylist": ["secret_*"],
            "mode": "both",
        }
    },
    "servers": {"notes": {"expose": {"mode": "blocklist", "tools": ["slow"]}}},
}


@pytest.mark.parametrize(
    ("server", "tool", "reason", "rule"),
    [
        ("notes", "secret_read", "tool_denied", ""),
        ("notes", "drop_all", "", "rules[0] drop_*"),
        ("notes", "slow", "hidden", ""),
        ("notes", "nothing", "not_listed", ""),
        ("bank", "read", "not_allowed", ""),
    ],
)
@pytest.mark.parametrize("way", ["tools/call", "execute_tool"])
@virtual_time
async def test_audit_row_of_refusal_names_server_tool_and_reason(
    way: str, server: str, tool: str, reason: str, rule: str
) -> None:
    async with Gateway(TRUE_REASONS, {"notes": notes_server(), "bank": notes_server()}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        if way == "tools/call":
            refused = await caller.call(f"{server}__{tool}")
            assert refused.error is not None
        else:
            given = {"server": server, "tool": tool, "args": {}}
            await caller.call("execute_tool", given)
        (entry,) = await denials_in_audit(gate)
        assert (entry.server, entry.name, entry.kind, entry.rule) == (server, tool, "tool", rule)
        assert entry.reason.startswith(reason)
        assert len([line for line in gate.log if line.event == "denied"]) == 1


@virtual_time
async def test_audit_row_of_refused_resource_names_rule() -> None:
    async with Gateway(TRUE_REASONS, {"notes": notes_server(), "bank": notes_server()}) as gate:
        caller = await gate.caller("2025")
        refused = await caller.request("resources/read", {"uri": "note://secret/a"})
        assert refused.error is not None
        (entry,) = await denials_in_audit(gate)
        assert (entry.server, entry.name, entry.kind) == ("notes", "note://secret/a", "resource")
        assert (entry.rule, entry.reason.partition(":")[0]) == ("rules[1] resource:note://secret/*", "rule_denied")


@virtual_time
async def test_audit_row_of_quarantined_tool_names_its_quarantine() -> None:
    notes = notes_server()
    async with Gateway({"pins": "enforce"}, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()

        @notes.tool("read", description="Reads, and sends a copy away.")
        async def read(call: Call) -> str:
            return "text"

        await gate.restart()
        caller = await gate.caller("2025")
        assert "notes__read" not in [tool["name"] for tool in await caller.tools()]
        await caller.call("notes__read")
        (entry,) = await denials_in_audit(gate)
        assert (entry.server, entry.name, entry.reason.partition(":")[0]) == ("notes", "read", "quarantined")


@virtual_time
async def test_refusal_of_unlisted_name_leaves_one_audit_row() -> None:
    """With plain names the gate decides about unlisted names, and has written the row."""
    scopes = {"default": {"default_servers": ["*"], "names": "plain", "tool_denylist": ["secret_*"]}}
    async with Gateway({"scopes": scopes}, {"notes": notes_server()}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        await caller.call("Secret_read")
        (entry,) = await denials_in_audit(gate)
        assert (entry.server, entry.name) == ("notes", "Secret_read")


@virtual_time
async def test_a_session_that_requests_too_much_has_an_audit_row() -> None:
    config = {"scopes": {"default": {"default_servers": ["notes"], "allowed_servers": ["notes"]}}}
    async with Gateway(config, {"notes": notes_server(), "bank": notes_server()}) as gate:
        with pytest.raises(KeyError):
            await gate.caller("2025", headers={"x-taskgate-servers": "bank"})
        (entry,) = await denials_in_audit(gate)
        assert (entry.kind, entry.decision, entry.principal) == ("session", "not_allowed", "anonymous")


@virtual_time
@pytest.mark.parametrize("name", ["notes__guess_{}", "notes__drop_all"])
async def test_a_flood_of_refusals_is_summed(name: str) -> None:
    async with Gateway(SCOPES, {"notes": notes_server()}) as gate:
        caller = await gate.caller("2025")
        for number in range(200):
            await caller.call(name.format(number))
        rows = await denials_in_audit(gate)
        assert len(rows) < 110
        summed = [int(present(re.match(r"\d+", row.reason))[0]) for row in rows if "more refusals" in row.reason]
        assert len([row for row in rows if "more refusals" not in row.reason]) + sum(summed) == 200


@virtual_time
async def test_every_refusal_of_an_authenticated_caller_has_a_row() -> None:
    tokens = [{"id": "ann", "sha256": hashlib.sha256(b"token-of-ann").hexdigest()}]
    async with Gateway({**SCOPES, "tokens": tokens}, {"notes": notes_server()}) as gate:
        caller = await gate.caller("2025", token="token-of-ann")
        for number in range(80):
            await caller.call(f"notes__guess_{number}")
        rows = await denials_in_audit(gate)
        assert [(row.principal, row.name) for row in rows] == [("ann", f"guess_{number}") for number in range(80)]


@pytest.mark.parametrize(("calls", "single"), [("summed", 200), ("every", 250)])
@virtual_time
async def test_audit_rows_of_plain_calls_are_summed_or_not(calls: str, single: int) -> None:
    async with Gateway({"audit": {"calls": calls}}, {"notes": notes_server()}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        await gate.advance(1)
        for _ in range(250):
            await caller.call("notes__read")
        await gate.advance(2)
        rows = [row.entry for row in await gate.life.app.store.ask(AuditRows(0, 1000))]
        assert len([row for row in rows if row.event == "call"]) == single
        counted = [row.reason for row in rows if row.event == "calls"]
        assert counted == ([] if single == 250 else ["50 more calls of this kind"])


@virtual_time
async def test_requests_tasks_and_pending_approvals_are_counted() -> None:
    async with Gateway({}, {"notes": notes_server()}) as gate:
        caller = await gate.caller("2025")
        await caller.call("notes__read")
        await caller.request("no/such_method")
        slow = caller.begin_call("notes__slow")
        await gate.advance(46)
        assert "continues as task" in slow.reply.text
        seen = await metrics_of(gate)
        assert seen['taskgate_requests_total{method="tools/call",outcome="ok"}'] == 1
        assert seen['taskgate_requests_total{method="other",outcome="method_not_found"}'] == 1
        assert seen['taskgate_task_transitions_total{state="running"}'] == 1
        assert seen["taskgate_open_tasks"] == 1
        assert seen["taskgate_sessions"] == 1
        await gate.advance(20)
        seen = await metrics_of(gate)
        assert seen['taskgate_task_transitions_total{state="completed"}'] == 1
        assert seen["taskgate_open_tasks"] == 0
        assert seen['taskgate_requests_total{method="tools/call",outcome="promoted"}'] == 1
        assert seen['taskgate_request_seconds_count{method="tools/call"}'] == 2


@virtual_time
async def test_length_of_sessions_is_counted_when_they_end() -> None:
    notes = notes_server()
    async with Gateway({}, {"notes": notes}) as gate:
        caller = await gate.caller("2025")
        await caller.call("notes__read")
        await gate.advance(120)
        assert not [name for name in await metrics_of(gate) if "session_seconds" in name]
        notes.forget_sessions()
        await caller.call("notes__read")
        of_server = await metrics_of(gate)
        await caller.close()
        of_caller = await metrics_of(gate)
    for seen, name in (
        (of_server, 'taskgate_server_session_seconds_{}{{{}server="notes"}}'),
        (of_caller, 'taskgate_session_seconds_{}{{{}transport="tcp"}}'),
    ):
        assert 120 <= seen[name.format("sum", "")] < 200
        assert seen[name.format("count", "")] == seen[name.format("bucket", 'le="300.0",')] == 1
        assert seen[name.format("bucket", 'le="60.0",')] == 0


DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


SHARED_STORE = {"taskgate_replicas", "taskgate_replicas_differ", "taskgate_lease_age_seconds"}
"""Exported only by gateways that share a store."""


@virtual_time
async def test_every_exported_metric_is_documented_and_no_other() -> None:
    async with Gateway({}, {"notes": notes_server()}) as gate:
        text = (await gate.http("GET", "/metrics").done()).body.decode()
    exported = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    exported = {re.sub(r"_total$", "", name) for name in exported}
    documented = set(re.findall(r"^\| `(taskgate_\w+)`", DOCS.read_text(), re.MULTILINE))
    assert exported == documented - SHARED_STORE


@virtual_time
async def test_every_exported_metric_moves() -> None:
    """Each family has shown a value other than zero by the end of a day in which everything happens once."""
    notes, bank = notes_server(), Upstream("2025")

    @bank.tool("pay", inputSchema={"type": "object", "properties": {"amount": {"type": "integer"}}})
    async def pay(call: Call) -> str:
        await call.elicit("Sure?")
        return "paid"

    config = {
        **SCOPES,
        "tasks": {"annotation_mode": "strict"},
        "approval": {"default": {"timeout": "5m"}},
        "servers": {"bank": {"budgets": {"max_concurrency": 1}}},
        "limits": {"runs_per_server": 1},
    }
    config["governance"] = {"rules": [*SCOPES["governance"]["rules"], {"match": "wire", "action": "approve"}]}

    @bank.tool("wire")
    async def wire(call: Call) -> str:
        return "wired"

    @notes.tool("nap")
    async def nap(call: Call) -> str:
        await call.sleep(5)
        return "rested"

    async with Gateway(config, {"notes": notes, "bank": bank}) as gate:
        documented = set(re.findall(r"^\| `(taskgate_\w+)`", DOCS.read_text(), re.MULTILINE))
        moved: set[str] = set()

        async def look() -> None:
            moved.update(family(sample) for sample, value in (await metrics_of(gate)).items() if value)

        await look()
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        await caller.tools()
        await caller.call("notes__drop_all")
        with pytest.raises(KeyError):
            await gate.caller("2025", headers={"x-taskgate-servers": "nowhere"})
        await caller.call("bank__wire")
        held = await caller.call("bank__wire", task={})
        for number in range(2):
            caller.begin_call("notes__nap", _meta={"taskgate/idempotencyKey": f"nap {number}"})
        await gate.advance(1)
        await look()
        caller.begin_call("bank__pay", {"amount": "much"})
        caller.begin_call("bank__pay", {"amount": 1})
        await gate.advance(1)
        await look()
        assert held.result["task"]["taskId"]
        await gate.advance(400)
        notes.forget_sessions()
        await caller.call("notes__read")
        await caller.close()
        await gate.advance(1)
        await look()
    # The cost of models is tested in tests/features/test_sampling_by_models.py.
    assert documented - moved - SHARED_STORE == {"taskgate_usage_sampling_cost"}
