"""A server that quotes the credentials it was sent in errors, failed results or notifications does not disclose them."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.identity.accounts import LoginIssuer, config, connected, digest
from tests.identity.issuer import an_issuer
from tests.virtual_time import TASKS_EXTENSION, Call, Failure, Gateway, Reply, Upstream, text, virtual_time

from taskgate.core.redaction.fields import HIDDEN

TOKENS = [{"id": who, "sha256": digest(f"token-of-{who}")} for who in ("ann", "bob")]
TASKS: dict[str, Any] = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
STATIC = "st4tic+t0ken/0f=the.0perator"


@dataclass
class QuotingServer:
    """Quotes the headers of each request wherever it can."""

    generation: str
    sent: set[str] = field(default_factory=set)
    """The credentials that it received, without the scheme."""

    def upstream(self) -> Upstream:
        server = Upstream(self.generation, capabilities={"logging": {}}, authorized=self._authorized)
        for name in ("error", "failed", "logs", "refused", "ordinary"):
            server.tool(name, getattr(self, name))
        server.tool("own_task", self.failed, as_task=True)
        server.tool("own_error", self.failing, as_task=True)
        return server

    def _authorized(self, header: str) -> bool:
        self.sent.add(header.partition(" ")[2])
        return header.startswith("Bearer ")

    async def error(self, call: Call) -> str:
        expected_text = f"401 for {json.dumps(call.headers)}"
        raise Failure(-32000, expected_text, {"headers": call.headers, "basic": _basic(call)})

    async def failed(self, call: Call) -> dict[str, Any]:
        structured = {"structuredContent": {"headers": call.headers}}
        return {**text(f"401 for {call.headers['authorization']}"), **structured, "isError": True}

    async def failing(self, call: Call) -> str:
        raise Failure(-32000, f"401 for {call.headers['authorization']}")

    async def logs(self, call: Call) -> str:
        call.progress(1, 2, f"calling with {call.headers['authorization']}")
        call.notify("notifications/message", {"level": "error", "data": {"headers": call.headers}})
        return "done"

    async def refused(self, call: Call) -> None:
        error = {
            "jsonrpc": "2.0",
            "id": None,
            "error": {"code": -32000, "message": f"no: {call.headers['authorization']}"},
        }
        call.reply.send(418, json.dumps(error).encode(), {"content-type": "application/json"})

    async def ordinary(self, call: Call) -> dict[str, Any]:
        structured = {"nested": {"isError": True}, "filler": "x" * call.arguments.get("size", 0)}
        return {**text(call.headers["authorization"]), "structuredContent": structured}


def _basic(call: Call) -> str:
    return base64.b64encode(b"api:" + call.headers["authorization"].partition(" ")[2].encode()).decode()


@asynccontextmanager
async def static(leaky: QuotingServer) -> AsyncIterator[Gateway]:
    servers = {"notes": {"headers": {"Authorization": f"Bearer {STATIC}"}}}
    async with Gateway({"tokens": TOKENS, "servers": servers}, {"notes": leaky.upstream()}) as gate:
        yield gate


@asynccontextmanager
async def client_credentials(leaky: QuotingServer) -> AsyncIterator[Gateway]:
    async with an_issuer() as served:
        numbers = iter(range(1000))

        def token(_body: bytes) -> tuple[int, bytes]:
            body = {"access_token": f"fetched-token-{next(numbers)}-0123456789", "token_type": "Bearer"}
            return 200, json.dumps({**body, "expires_in": 100}).encode()

        served.pages["/token"] = token
        auth = {"client_id": "gate", "client_secret": "s3cret", "token_url": f"{served.url}/token"}
        servers = {"notes": {"auth": {"type": "client_credentials", **auth}}}
        async with Gateway({"tokens": TOKENS, "servers": servers}, {"notes": leaky.upstream()}) as gate:
            yield gate


@asynccontextmanager
async def exchanged(leaky: QuotingServer) -> AsyncIterator[Gateway]:
    async with an_issuer() as served:
        body = {"access_token": "exchanged-0123456789", "token_type": "Bearer", "expires_in": 100}
        served.pages["/token"] = lambda _body: (200, json.dumps({**body, "issued_token_type": "urn:x"}).encode())
        auth = {"client_id": "gate", "client_secret": "s3cret", "token_url": f"{served.url}/token"}
        servers = {"notes": {"auth": {"type": "token_exchange", **auth}}}
        async with Gateway({"tokens": TOKENS, "servers": servers}, {"notes": leaky.upstream()}) as gate:
            yield gate


@asynccontextmanager
async def forwarded(leaky: QuotingServer) -> AsyncIterator[Gateway]:
    given = {"public_url": "https://gate.example", "tokens": TOKENS}
    servers = {"notes": {"auth": {"type": "forward_identity"}}}
    async with Gateway({**given, "servers": servers}, {"notes": leaky.upstream()}) as gate:
        yield gate


KINDS = {"static": static, "client": client_credentials, "exchanged": exchanged, "forwarded": forwarded}


def quoted(leaky: QuotingServer, received: bytes) -> list[str]:
    """The credentials in this text, in any of the encodings that the server uses."""
    forms = {
        form
        for token in leaky.sent
        if token
        for form in (token, json.dumps(token)[1:-1], base64.b64encode(b"api:" + token.encode()).decode()[8:-4])
    }
    return [form for form in forms if form.encode() in received]


def everything(reply: Reply) -> bytes:
    return json.dumps(reply.messages).encode() + bytes(reply.body)


def state_files(gate: Gateway) -> bytes:
    kept = ("operator-token", "secret")
    return b"".join(path.read_bytes() for path in gate.state.rglob("*") if path.is_file() and path.name not in kept)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("caller_is", ["2025", "2026"])
@virtual_time
async def test_credentials_are_removed_from_failures_and_notifications(
    kind: str, generation: str, caller_is: str
) -> None:
    leaky = QuotingServer(generation)
    async with KINDS[kind](leaky) as gate:
        capabilities = TASKS_EXTENSION if caller_is == "2026" else TASKS
        caller = await gate.caller(caller_is, token="token-of-ann", capabilities=capabilities)
        replies = []
        for tool in ("error", "failed", "refused", "logs"):
            replies.append(await caller.call(f"notes__{tool}", _meta={"progressToken": tool}))
            assert quoted(leaky, everything(replies[-1])) == [], tool
            assert len(leaky.sent) > 0
        assert replies[0].last["error"]["code"] == -32000
        assert replies[1].result["isError"] is True
        assert all(HIDDEN.encode() in everything(reply) for reply in replies[:2])
        assert HIDDEN in json.dumps(replies[3].messages)
        await gate.advance(2)
        log = "\n".join(str(line) for line in gate.log).encode()
        pages = [await gate.operator("GET", path) for path in ("/api/v1/servers", "/api/v1/tasks", "/api/v1/audit")]
        for message in (log, *(page.body for page in pages)):
            assert quoted(leaky, message) == []
        await gate.stop()
        assert quoted(leaky, state_files(gate)) == []


@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("tool", ["error", "failed", "own_task", "own_error"])
@virtual_time
async def test_credentials_are_not_kept_with_tasks(tool: str, generation: str) -> None:
    leaky = QuotingServer(generation)
    async with static(leaky) as gate:
        caller = await gate.caller("2025", token="token-of-ann", capabilities=TASKS)
        made = (await caller.call(f"notes__{tool}", task={"ttl": 60_000})).result["task"]["taskId"]
        await gate.advance(5)
        seen = [
            await caller.request("tasks/get", {"taskId": made}),
            await caller.request("tasks/result", {"taskId": made}),
            await gate.operator("GET", f"/api/v1/tasks/{made}"),
            await gate.operator("GET", f"/tasks/{made}"),
        ]
        assert seen[0].result["status"] == "failed"
        for reply in seen:
            assert quoted(leaky, everything(reply)) == []
        if (tool, generation) != ("own_error", "2026"):
            assert HIDDEN.encode() in everything(seen[1])
        await gate.stop()
        assert quoted(leaky, state_files(gate)) == []


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_status_messages_of_the_servers_own_tasks_are_cleaned(generation: str) -> None:
    leaky = QuotingServer(generation)
    server = leaky.upstream()
    status = {"taskId": "notes-task-1", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "ttl": None}

    async def get(call: Call) -> dict[str, Any]:
        return {**status, "statusMessage": f"still using {call.headers['authorization']}", "pollIntervalMs": 1000}

    async def waits(call: Call) -> dict[str, Any]:
        await call.sleep(1000)
        return {}

    @server.tool("slow", as_task=True)
    async def slow(call: Call) -> str:
        await call.sleep(1000)
        return "done"

    server.on("tasks/get", get)
    server.on("tasks/result", waits)
    server.on("tasks/cancel", waits)
    servers = {"notes": {"headers": {"Authorization": f"Bearer {STATIC}"}}}
    async with Gateway({"servers": servers}, {"notes": server}) as gate:
        caller = await gate.caller("2025", capabilities=TASKS)
        made = [(await caller.call("notes__slow", task={})).result["task"]["taskId"] for _ in range(70)]
        await gate.advance(5)
        shown = [await caller.request("tasks/get", {"taskId": task_id}) for task_id in made]
        messages = [reply.result.get("statusMessage", "") for reply in shown]
        assert f"still using Bearer {HIDDEN}" in messages
        assert not any(quoted(leaky, everything(reply)) for reply in shown)


@pytest.mark.parametrize("size", [0, 300_000], ids=["short", "large"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_ordinary_results_pass_byte_for_byte(kind: str, generation: str, size: int) -> None:
    leaky = QuotingServer(generation)
    async with KINDS[kind](leaky) as gate:
        caller = await gate.caller("2025", token="token-of-ann")
        result = (await caller.call("notes__ordinary", {"size": size})).result
        assert result["content"][0]["text"].partition(" ")[2] in leaky.sent
        assert result["structuredContent"] == {"nested": {"isError": True}, "filler": "x" * size}


@virtual_time
async def test_the_previous_token_is_removed_too() -> None:
    leaky = QuotingServer("2025")
    async with client_credentials(leaky) as gate:
        caller = await gate.caller("2025", token="token-of-ann")
        await caller.call("notes__ordinary")
        first = max(leaky.sent)
        await gate.advance(200)
        await caller.call("notes__ordinary")
        assert len(leaky.sent - {""}) >= 2

        async def late(_call: Call) -> str:
            raise Failure(-32000, f"{' '.join(leaky.sent)}")

        gate.upstreams["notes"].tool("error", late)
        reply = await caller.call("notes__error")
        assert first not in everything(reply).decode()
        assert quoted(leaky, everything(reply)) == []


@virtual_time
async def test_accounts_of_people_are_not_disclosed_to_each_other() -> None:
    async with an_issuer() as served:
        issuer, leaky = LoginIssuer(served), QuotingServer("2025")
        server = leaky.upstream()

        @server.tool("quoting_result")
        async def quoting_result(_call: Call) -> str:
            raise Failure(-32000, f"known: {' '.join(sorted(leaky.sent))}")

        async with Gateway(config(issuer), {"notes": server}) as gate:
            for who in ("", "ann", "bob"):
                await connected(gate, issuer, who, f"{who or 'lister'}-at-notes")
            await gate.advance(70)
            callers = [await gate.caller("2025", token=f"token-of-{who}") for who in ("ann", "bob")]
            for caller in callers:
                await caller.call("notes__ordinary")
            assert len([token for token in leaky.sent if "ann" in token or "bob" in token]) == 2
            for caller in callers:
                reply = await caller.call("notes__quoting_result")
                assert HIDDEN.encode() in everything(reply)
                assert quoted(leaky, everything(reply)) == []


@virtual_time
async def test_large_failures_and_notifications_are_cleaned() -> None:
    server = Upstream("2025", capabilities={"logging": {}})
    padding = "x" * 400_000

    @server.tool("failed")
    async def failed(call: Call) -> dict[str, Any]:
        call.notify("notifications/message", {"level": "error", "data": [padding, call.headers["authorization"]]})
        return {**text(f"{padding} {call.headers['authorization']}"), "isError": True}

    @server.tool("ordinary")
    async def ordinary(call: Call) -> dict[str, Any]:
        return {**text(f"{padding} {call.headers['authorization']}"), "isError": False}

    servers = {"notes": {"headers": {"Authorization": f"Bearer {STATIC}"}}}
    async with Gateway({"servers": servers}, {"notes": server}) as gate:
        caller = await gate.caller("2025")
        reply = await caller.call("notes__failed")
        assert STATIC not in json.dumps(reply.messages)
        assert reply.text == f"{padding} Bearer {HIDDEN}"
        (logged,) = [message for message in reply.messages if message.get("method") == "notifications/message"]
        assert logged["params"]["data"] == [padding, f"Bearer {HIDDEN}"]
        assert (await caller.call("notes__ordinary")).text == f"{padding} Bearer {STATIC}"


@virtual_time
async def test_notifications_outside_a_call_are_cleaned() -> None:
    server = Upstream("2025", capabilities={"logging": {}})
    servers = {"notes": {"headers": {"X-Api-Key": STATIC}}}
    async with Gateway({"servers": servers}, {"notes": server}) as gate:
        caller = await gate.caller("2025")
        stream = await caller.listen()
        await caller.call("notes__echo")
        await gate.advance(1)
        server.notify("notifications/message", {"level": "error", "data": f"key {STATIC}"})
        await gate.advance(1)
        received = [message for message in stream.reply.messages if message.get("method") == "notifications/message"]
        assert [message["params"]["data"] for message in received] == [f"key {HIDDEN}"]
