"""Requests of servers to callers: in the form of the specification, and in the audit log."""

from __future__ import annotations

from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.store.operations.audit import AuditRows

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
OLD_SHAPE: dict[str, Any] = {
    "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}],
    "includeContext": True,
}
SPEC_SHAPE: dict[str, Any] = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "Hello"}}],
    "systemPrompt": "Be kind.",
    "maxTokens": 1024,
}
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "Hi"}, "model": "m"}


def server(generation: str = "2025") -> Upstream:
    notes = Upstream(generation)

    @notes.tool("sample")
    async def sample(call: Call) -> str:
        return str((await call.ask("sampling/createMessage", OLD_SHAPE))["content"]["text"])

    @notes.tool("ask")
    async def ask(call: Call) -> str:
        return str((await call.elicit("Your name?", FORM)).get("action"))

    return notes


@virtual_time
async def test_an_older_servers_sampling_request_reaches_a_client_in_the_specified_shape() -> None:
    async with Gateway({}, {"notes": server()}) as gate:
        caller = await gate.caller("2025", capabilities={"sampling": {}}, answers={"sampling/createMessage": SAMPLED})
        assert (await caller.call("notes__sample", {})).text == "Hi"
        (asked,) = caller.asked
        assert asked["params"] == SPEC_SHAPE
        stateless = await gate.caller("2026", capabilities={"sampling": {}})
        reply = await stateless.call("notes__sample", {})
        (request,) = reply.result["inputRequests"].values()
        assert request["params"] == SPEC_SHAPE


@virtual_time
async def test_an_older_servers_sampling_request_waits_in_the_inbox_in_the_shape_of_the_specification() -> None:
    async with Gateway({}, {"notes": server()}) as gate:
        caller = await gate.caller("2025")
        caller.begin_call("notes__sample", {})
        await gate.advance(1)
        (waiting,) = (await caller.call_json("get_sampling_requests"))["sampling_requests"]
        assert waiting["params"] == SPEC_SHAPE


@pytest.mark.parametrize("upstream", ["2025", "2026"])
@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("native", [True, False])
@virtual_time
async def test_each_form_sent_to_a_caller_has_an_audit_row(upstream: str, generation: str, native: bool) -> None:
    async with Gateway({}, {"notes": server(upstream)}) as gate:
        capabilities: dict[str, Any] = {"elicitation": {"form": {}}} if native else {}
        answers = {"elicitation/create": {"action": "decline"}}
        caller = await gate.caller(generation, capabilities=capabilities, answers=answers)
        caller.begin_call("notes__ask", {})
        await gate.advance(50)
        rows = await gate.life.app.store.ask(AuditRows(0, 1000))
        forms = [row.entry for row in rows if row.entry.event == "form_elicitation"]
        assert [(entry.principal, entry.server) for entry in forms] == [("anonymous", "notes")]
        assert not any("Your name" in str(entry) for entry in forms)
