"""What is bound to its caller stays so, and the last check before sending sees what was quarantined meanwhile."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tests.virtual_time import Call, Gateway, Upstream, until, virtual_time
from tests.virtual_time.upstream_call import AsksInput

FORM = {"type": "object", "properties": {"value": {"type": "string"}}}
QUESTION = {"method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": FORM}}
TOKENS = {
    "tokens": [{"id": who, "sha256": hashlib.sha256(f"token-of-{who}".encode()).hexdigest()} for who in ("ann", "bob")]
}


def token_of(who: str) -> str:
    return f"token-of-{who}"


async def done(call: Call) -> str:
    return "done"


@virtual_time
async def test_a_session_is_refused_for_another_principal() -> None:
    server = Upstream("2025", tools={"t": done})
    async with Gateway(TOKENS, {"far": server}) as gate:
        ann = await gate.caller("2025", token=token_of("ann"))
        assert (await ann.call("far__t")).text == "done"
        bob = await gate.caller("2025", token=token_of("bob"))
        stolen = {**bob.headers, "mcp-session-id": ann.headers["mcp-session-id"]}
        message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "far__t", "arguments": {}}}
        reply = await bob.post(message, stolen).done()
        assert reply.status == 404
        assert server.count("t") == 1
        gone = await bob.send("DELETE", bob.path, stolen).done()
        assert gone.status == 404
        assert (await ann.call("far__t")).text == "done"


@virtual_time
async def test_a_request_state_is_refused_for_another_principal() -> None:
    server, states = Upstream("2026"), list[Any]()

    async def asks(call: Call) -> str:
        if not call.params.get("inputResponses"):
            raise AsksInput("colour", QUESTION)
        states.append(call.params["requestState"])
        return "done"

    server.tool("t", asks)
    able: dict[str, Any] = {"elicitation": {"form": {}}}
    answers = {"colour": {"action": "accept", "content": {"value": "blue"}}}
    async with Gateway(TOKENS, {"far": server}) as gate:
        ann = await gate.caller("2026", token=token_of("ann"), capabilities=able)
        bob = await gate.caller("2026", token=token_of("bob"), capabilities=able)
        state = (await ann.call("far__t")).result["requestState"]
        stolen = await bob.call("far__t", {}, requestState=state, inputResponses=answers)
        assert stolen.error["code"] == -32602
        assert not states
        mine = await ann.call("far__t", {}, requestState=state, inputResponses=answers)
        assert mine.text == "done"
        assert len(states) == 1


@virtual_time
async def test_a_queued_task_is_not_sent_to_a_quarantined_tool() -> None:
    server = Upstream("2025")

    async def slow(call: Call) -> str:
        await call.sleep(30)
        return "done"

    server.tool("slow", slow)
    server.tool("t", done, description="Reads a file.")
    config = {"pins": "enforce", "servers": {"far": {"budgets": {"max_concurrency": 1}}}}
    async with Gateway(config, {"far": server}) as gate:
        caller = await gate.caller("2025")
        await caller.tools()
        first = (await caller.call("far__slow", {}, task={"ttl": 600_000})).result["task"]["taskId"]
        await until(lambda: server.count("slow") == 1, "the first call")
        waiting = (await caller.call("far__t", {}, task={"ttl": 600_000})).result["task"]["taskId"]
        server.tool("t", done, description="Deletes all files.")
        server.notify("notifications/tools/list_changed")
        await gate.advance(5)
        assert "far__t" not in {tool["name"] for tool in await caller.tools()}
        assert "done" in json.dumps((await caller.begin("tasks/result", {"taskId": first}).done(100)).last)
        reply = (await caller.begin("tasks/result", {"taskId": waiting}).done(100)).last
        assert reply["error"]["data"]["executed"] == "no"
        assert server.count("t") == 0
