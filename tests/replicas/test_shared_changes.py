"""Changes of scopes, grants and added servers at one gateway take effect at the other one."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import sys
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import yaml
from tests.harness.gateway import Gateway
from tests.harness.raw_client import RawClient
from tests.replicas.in_process import DatabaseWire, Setup, gateways, gateways_wired
from tests.replicas.test_forwarding import events
from tests.replicas.test_two_gateways import DEADLINE_S, TASKS, operator, pair

from taskgate.core.errors import GatewayFault
from taskgate.core.generations.stateful import InitializeParams
from taskgate.core.identity.caller import Caller, CredentialFacts
from taskgate.core.identity.identity import Identity
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.gateway.requests.session import Session
from taskgate.store.operations.catalogs import AnnounceLists, KeepCatalog, KeptCatalog, KeptCatalogs
from taskgate.store.operations.servers import ForgetServer, KeepServer, KeptServer
from taskgate.store.operations.shared_sessions import FindSession
from taskgate.store.postgres.store import open_store

MAP = {"mcp.enabled": "true", "mcp.default_server_ids": '["books"]'}
RULES = {"rules": [{"match": "books:once", "action": "approve"}]}
TOKEN = "token-of-agent-0123456789"
TOKENS = [{"id": "agent", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}]
FACADE = {"default": {"default_servers": ["*"], "mode": "both"}}


async def answered(gateway: Gateway, path: str, token: str) -> bool:
    async with RawClient(
        f"{gateway.base}/mcp{path}", stateless=True, headers={"authorization": f"Bearer {token}"}
    ) as caller:
        try:
            return "result" in (await caller.request("tools/list", {})).reply
        except (AssertionError, IndexError, ValueError):
            return False


async def until(what: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await what():
            await asyncio.sleep(0.05)


async def test_a_change_on_a_applies_on_b(tmp_path: Path) -> None:
    known: dict[str, Any] = {"tokens": TOKENS, "auth": {"anonymous": "default"}}
    async with pair(tmp_path, governance=RULES, scopes=FACADE, facade={"add_server": "on"}, **known) as both:
        await _tokens(both.a, both.b)
        await _scopes(both.a, both.b)
        await _grants(both.a, both.b)
        await _added_servers(both.b)
        await _drained_servers(both.a, both.b)


CHANGING = """
import json, sys
TOOLS = ["change"]
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        able = {"tools": {"listChanged": True}}
        info = {"name": "changing", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": able, "serverInfo": info}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    else:
        result = {"content": []}
    if message["method"] == "tools/call":
        TOOLS.append(f"more{len(TOOLS)}")
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        print(json.dumps(changed), flush=True)
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
"""A server on standard streams, of which each gateway starts a program of its own."""


async def test_lists_announced_to_b_are_announced_to_callers_of_a(tmp_path: Path) -> None:
    """Also where the program that A has started lists what it listed before: the caller's next request may reach B."""
    servers = {"own": {"command": sys.executable, "args": ["-c", CHANGING]}}
    async with (
        asyncio.timeout(DEADLINE_S),
        gateways(tmp_path, servers=servers) as setup,
        setup.a.caller(stateless=False) as wait_for_message,
        setup.b.caller() as calls,
    ):
        assert (await wait_for_message.request("tools/list")).result["tools"]
        headers = {"accept": "text/event-stream", **wait_for_message.headers}
        async with wait_for_message.http.stream("GET", wait_for_message.url, headers=headers) as stream:
            events_stream = events(stream.aiter_lines())
            for _ in range(3):
                assert "result" in (await calls.call("own__change")).reply
                while (await anext(events_stream))["method"] != "notifications/tools/list_changed":
                    pass
        listed = [tool["name"] for tool in (await wait_for_message.request("tools/list")).result["tools"]]
        assert [name for name in listed if name.startswith("own__")] == ["own__change"], "the program of A is as it was"


async def test_lists_announced_while_a_was_disconnected_are_announced_to_its_callers(tmp_path: Path) -> None:
    """The database has no record of it: A fetches its lists again and notifies its callers of what its own process lists."""
    servers = {"own": {"command": sys.executable, "args": ["-c", CHANGING]}}
    async with (
        asyncio.timeout(DEADLINE_S),
        gateways_wired(tmp_path, servers=servers) as (setup, wire),
        setup.a.caller(stateless=False) as wait_for_message,
    ):
        assert (await wait_for_message.request("tools/list")).result["tools"]
        headers = {"accept": "text/event-stream", **wait_for_message.headers}
        async with wait_for_message.http.stream("GET", wait_for_message.url, headers=headers) as stream:
            events_stream = events(stream.aiter_lines())
            await _announced_unheard(setup, wire)
            while (await anext(events_stream))["method"] != "notifications/tools/list_changed":
                pass


async def _announced_unheard(setup: Setup, wire: DatabaseWire) -> None:
    """B announces the lists of `own`, and the row after it is committed, while A cannot reach the database."""
    wire.refuses = True
    wire.cut()

    async def without_listener() -> bool:
        return setup.a.store.problem is not None

    await until(without_listener)
    setup.b.store.defer(AnnounceLists("own", ["tool"]))
    setup.b.store.defer(KeepCatalog(KeptCatalog("mark", "f1", 1, b"[]")))

    async def committed() -> bool:
        return any(kept.server == "mark" for kept in await setup.b.store.ask(KeptCatalogs()))

    await until(committed)
    wire.refuses = False


async def test_the_next_home_of_a_session_identifies_its_caller_like_the_first(tmp_path: Path) -> None:
    """What it followed is followed again in its name, and policies evaluate it with the facts of its token."""
    facts = CredentialFacts(frozenset({"read"}), "client", 1_700_000_000)
    caller = Caller("ann", frozenset({"approver"}), "default", "", "", facts)
    async with gateways(tmp_path) as setup:
        shared = [one.life.app.gateway.lifecycle.shared_sessions for one in setup.gateways if one.life is not None]
        assert shared[0] is not None
        assert shared[1] is not None
        session = Session("of-ann", caller, InitializeParams("2025-11-25", {}, {}), SessionRequest())
        await shared[0].opened(session)
        kept = await shared[1].rows.ask(FindSession("of-ann"))
        assert kept is not None
        assert shared[1].restored(kept).caller == caller


async def test_a_person_erased_at_one_gateway_may_decide_at_none(tmp_path: Path) -> None:
    """Known at both from a credential that was shown at one."""
    async with gateways(tmp_path) as setup:
        a, b = [one.life.app.gateway.console for one in setup.gateways if one.life is not None]
        a.people.note(Identity("ann", frozenset({"approver"})))

        async def known() -> bool:
            return "ann" in b.plan.value.governing.approvers

        async def forgotten() -> bool:
            return not await known()

        await until(known)
        reply = await setup.a.operator("POST", "/api/v1/data/erase", {"principal": "ann"})
        assert reply.status_code == 200, reply.text
        await until(forgotten)
        assert "ann" not in a.plan.value.governing.approvers
        assert "ann" not in b.plan.value.governing.roles


async def test_sessions_are_limited_at_all_gateways_together(tmp_path: Path) -> None:
    async with gateways(tmp_path, limits={"sessions_per_caller": 2}) as setup, AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(one.caller(stateless=False)) for one in setup.gateways]
        assert "result" in (await first.request("ping")).reply
        assert "result" in (await second.request("ping")).reply
        for gateway in setup.gateways:
            third = gateway.caller()
            opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening}
            refused = await third.post(body)
            assert refused.error["data"]["error_type"] == "overloaded", refused.reply
            assert refused.error["data"]["executed"] == "no"
            await third.http.aclose()
        assert (await first.http.delete(first.url, headers=first.headers)).status_code == 200
        await stack.enter_async_context(setup.b.caller(stateless=False))


async def _tokens(a: Gateway, b: Gateway) -> None:
    """Revoked at A, it is refused at B. B has it at the latest when it last read the store 5 s ago, because it
    answers no call after that (`test_plain_calls_end_when_the_database_has_confirmed_nothing_for_five_seconds`).
    """
    assert await answered(b, "", TOKEN)
    reply = await operator(a, "POST", "/api/v1/tokens/revoke", {"name": "agent"})
    assert reply.status_code == 200, reply.text

    async def refused() -> bool:
        return not await answered(b, "", TOKEN)

    await until(refused)


async def _drained_servers(a: Gateway, b: Gateway) -> None:
    async def lists_books(gateway: Gateway) -> bool:
        async with RawClient(gateway.url, stateless=True) as caller:
            listed = (await caller.request("tools/list")).result["tools"]
        return any(tool["name"].startswith("books__") for tool in listed)

    async def lists_none() -> bool:
        return not await lists_books(b)

    async def drained(gateway: Gateway) -> bool:
        return bool((await operator(gateway, "GET", "/api/v1/servers/books")).json()["drained"])

    assert (await operator(a, "POST", "/api/v1/servers/books/drain", {})).status_code == 200
    await until(lists_none)
    assert await drained(b)
    # A gateway that returns finds the stored state.
    await a.restart()
    assert await drained(a)
    assert (await operator(b, "POST", "/api/v1/servers/books/enable", {})).status_code == 200
    assert await lists_books(b)
    await until(lambda: lists_books(a))


async def _scopes(a: Gateway, b: Gateway) -> None:
    made = (await operator(a, "POST", "/api/v1/scopes", {"config": MAP, "lifetime_ms": 3_600_000})).json()
    await until(lambda: answered(b, f"/{made['scope']}", made["token"]))
    assert (await operator(a, "DELETE", f"/api/v1/scopes/{made['scope']}")).status_code < 300

    async def refused() -> bool:
        return not await answered(b, f"/{made['scope']}", made["token"])

    await until(refused)


async def _grants(a: Gateway, b: Gateway) -> None:
    """Approved at A with a grant for later calls: B then sends them without approval, until the grant is revoked at A."""
    async with RawClient(b.url, stateless=True, capabilities=TASKS) as caller:
        first = await caller.call("books__once", {"call": "g0"})
        assert first.result["resultType"] == "task"
        (row,) = (await operator(a, "GET", "/api/approvals")).json()
        request_body = {"grant": {"minutes": 30}}
        reply = await operator(a, "POST", f"/api/approvals/{row['id']}/approve", request_body)
        assert reply.status_code == 200, reply.text

        numbers = itertools.count(1)

        async def is_held() -> bool:
            """Another call each time: one that was held before B received the grant stays held."""
            before = len((await operator(a, "GET", "/api/approvals")).json())
            answer = await caller.call("books__once", {"call": f"g{next(numbers)}"})
            assert "result" in answer.reply, answer.reply
            return len((await operator(a, "GET", "/api/approvals")).json()) > before

        async def goes() -> bool:
            return not await is_held()

        await until(goes)
        (grant,) = (await operator(b, "GET", "/api/grants")).json()
        await operator(a, "POST", f"/api/grants/{grant['id']}/revoke", {})

        await until(is_held)


async def _done(write: Awaitable[bool]) -> bool:
    """False if our lease expired on a busy machine: the others regarded us as dead, and we continue with a new fence."""
    try:
        return await write
    except GatewayFault:
        return False


async def _added_servers(b: Gateway) -> None:
    """The row is written as a third gateway would write it: servers that callers add must have a public address."""
    url = yaml.safe_load(b.config.read_text())["store"]["url"]
    third = open_store(url)
    new = {"name": "guest", "url": "https://mcp.example.com/mcp"}
    kept = KeptServer("guest", "default", json.dumps(new).encode())
    await until(lambda: _done(third.do(KeepServer(kept))))

    async def listed() -> bool:
        async with RawClient(b.url, stateless=True) as caller:
            return "guest" in json.dumps((await caller.call("list_servers", {})).reply)

    await until(listed)
    await until(lambda: _done(third.do(ForgetServer("guest"))))
    await third.close()

    async def gone() -> bool:
        return not await listed()

    await until(gone)
