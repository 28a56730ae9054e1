"""In front of one server the gateway returns what a direct connection would, where none of its features needs the difference."""

from __future__ import annotations

from typing import Any

import pytest
from tests.virtual_time import Call, Gateway, Upstream, until, virtual_time
from tests.virtual_time.upstream_call import Failure

PROGRESS = "notifications/progress"
ROOTS_CHANGED = "notifications/roots/list_changed"
QUESTIONS: dict[str, dict[str, Any]] = {
    "elicitation/create": {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}},
    "sampling/createMessage": {"messages": [], "maxTokens": 5},
    "roots/list": {},
}
NO_INBOX = {"scopes": {"default": {"default_servers": ["shop"], "helper_tools": "never"}}}


class Reporter(Upstream):
    """Its tool reports progress that does not increase, and keeps its token for a report after the reply."""

    def __init__(self) -> None:
        super().__init__("2025")
        self.token: int | None = None
        self.tool("report", self._report)

    async def _report(self, call: Call) -> str:
        self.token = call.meta.get("progressToken")
        for value, message in ((0.5, "one"), (0.5, "two"), (0.25, "three")):
            call.progress(value, message=message)
        return "reported"


@virtual_time
async def test_progress_that_does_not_increase_is_relayed() -> None:
    shop = Reporter()
    async with Gateway({}, {"shop": shop}) as gate:
        caller = await gate.caller("2025")
        exchange = caller.begin_call("shop__report", _meta={"progressToken": "mine"})
        reply = await exchange.done()
        updates = [message["params"] for message in reply.messages if message.get("method") == PROGRESS]
        assert [(one["progressToken"], one["progress"], one["message"]) for one in updates] == [
            ("mine", 0.5, "one"),
            ("mine", 0.5, "two"),
            ("mine", 0.25, "three"),
        ]


@virtual_time
async def test_progress_after_the_reply_reaches_only_the_caller_it_belongs_to() -> None:
    shop = Reporter()
    async with Gateway({"servers": {"shop": {"instances": "per_session"}}}, {"shop": shop}) as gate:
        caller, other = await gate.caller("2025"), await gate.caller("2025")
        stream, others = await caller.listen(), await other.listen()
        await other.call("shop__report", _meta={"progressToken": "other"})
        await caller.call("shop__report", _meta={"progressToken": "mine"})
        shop.notify(PROGRESS, {"progressToken": shop.token, "progress": 1})
        late = await stream.message(0)
        assert late["params"] == {"progressToken": "mine", "progress": 1}
        shop.notify(PROGRESS, {"progressToken": 10**9, "progress": 1})
        await gate.advance(1)
        assert [one for one in (*stream.reply.messages, *others.reply.messages) if one.get("method") == PROGRESS] == [
            late
        ]


@virtual_time
async def test_notification_before_the_first_call_reaches_the_only_server() -> None:
    shop, second = Upstream("2025"), Upstream("2025")
    async with Gateway({}, {"shop": shop}) as gate:
        caller = await gate.caller("2025", capabilities={"roots": {"listChanged": True}})
        await caller.notify(ROOTS_CHANGED)
        await until(lambda: shop.methods[ROOTS_CHANGED] == 1, "the notification")
    async with Gateway({}, {"shop": shop, "second": second}) as gate:
        caller = await gate.caller("2025", capabilities={"roots": {"listChanged": True}})
        await caller.notify(ROOTS_CHANGED)
        await gate.advance(1)
        assert (shop.methods[ROOTS_CHANGED], second.methods[ROOTS_CHANGED]) == (1, 0)


@pytest.mark.parametrize(("generation", "code"), [("2025", -32602), ("2026", -32002)])
@virtual_time
async def test_errors_of_a_server_are_translated_only_between_generations(generation: str, code: int) -> None:
    """-32002 exists in 2025-11-25 only; a 2026 server that returns it all the same is not corrected."""
    shop = Upstream(generation)

    async def missing(call: Call) -> Any:
        raise Failure(-32002, "Resource not found", {"uri": "memo://gone"})

    shop.on("resources/read", missing)
    async with Gateway({}, {"shop": shop}) as gate:
        caller = await gate.caller("2026")
        reply = await caller.request("resources/read", {"uri": "memo://gone"})
        assert (reply.error["code"], reply.error["message"]) == (code, "Resource not found")


@pytest.mark.parametrize("method", QUESTIONS)
@virtual_time
async def test_server_gets_the_usual_refusal_if_the_client_lacks_the_capability(method: str) -> None:
    shop = Upstream("2025")

    async def ask(call: Call) -> str:
        answer = await call.ask(method, QUESTIONS[method])
        return str(answer["error"]["code"])

    shop.tool("ask", ask)
    async with Gateway(NO_INBOX, {"shop": shop}) as gate:
        caller = await gate.caller("2025")
        assert (await caller.call("shop__ask")).text == "-32600"


@pytest.mark.parametrize("helpers", ["never", "auto"])
@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_scope_with_one_server_announces_its_capabilities(generation: str, helpers: str) -> None:
    """Tasks are announced too: without helper tools nothing else follows a call that is held or takes long."""
    shop, second = Upstream("2025"), Upstream("2025", capabilities={"logging": {}})
    shop.capabilities = {"tools": {}, "experimental": {"a": {}}}
    scopes = {name: {"default_servers": list(servers), "helper_tools": helpers} for name, servers in SCOPES.items()}
    async with Gateway({"scopes": scopes}, {"shop": shop, "second": second}) as gate:
        found = {name: await announced(gate, generation, name) for name in SCOPES}
    assert {"completions", "logging", "prompts", "resources"} < found["both"].keys()
    if helpers == "auto":
        assert found["one"].keys() == found["both"].keys()
        assert found["one"]["tools"] == CHANGES
        return
    if generation == "2025":
        assert found["one"] == {"tools": CHANGES, "experimental": {"a": {}}, "tasks": found["both"]["tasks"]}
    else:
        extensions: dict[str, Any] = {"io.modelcontextprotocol/tasks": {}}
        assert found["one"] == {"tools": CHANGES, "experimental": {"a": {}}, "extensions": extensions}


CHANGES = {"listChanged": True}
"""The gateway announces changes of lists also where the server does not."""
SCOPES = {"one": ("shop",), "both": ("shop", "second")}


async def announced(gate: Gateway, generation: str, scope: str) -> dict[str, Any]:
    caller = await gate.caller(generation, scope=scope)
    if generation == "2025":
        return dict((await caller.open()).result["capabilities"])
    return dict((await caller.request("server/discover", {})).result["capabilities"])
