"""A reload that shrinks one scope while both its callers are at work: one loses tools, the other notices nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.peers import CALLERS, Caller, every_third
from tests.scopes.scope_client import GENERATIONS, LIST_CHANGED, opened, scope, server

from taskgate.store.operations.audit import AuditRows
from taskgate.store.operations.task_queries import FindTask
from taskgate.store.sqlite.store import open_store

pytestmark = pytest.mark.virtual_time

SERVERS = {"files": server("files", "read", "delete", "touch"), "mail": server("mail", "send")}


def config(*review: str, **more: Any) -> dict[str, Any]:
    scopes = {"review": scope(*review, **more), "post": scope("mail")}
    return {"schema": 1, "servers": SERVERS, "scopes": scopes}


WIDE, NARROW = config("files", "mail"), config("files", tool_denylist=["delete"])


async def until_reloaded(gateway: Gateway, times: int = 1) -> None:
    async with asyncio.timeout(15):
        while gateway.log.count("configuration reloaded") < times:
            await asyncio.sleep(0.02)


async def until_there(file: Path) -> None:
    async with asyncio.timeout(45):
        while not file.exists():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("version", GENERATIONS)
async def test_the_next_list_and_call_use_a_reduced_scope(version: str) -> None:
    async with (
        running_gateway(WIDE) as gateway,
        opened(f"{gateway.url}/review", version) as ann,
        opened(f"{gateway.url}/post", version) as bob,
    ):
        assert await ann.tools() == ["files__read", "files__delete", "files__touch", "mail__send"]
        assert (await ann.call("mail__send")).text == "mail:send"
        async with ann.listening(LIST_CHANGED) as received:
            await gateway.reload(NARROW)
            await asyncio.wait_for(received.wait(), 15)
        assert await ann.tools() == ["files__read", "files__touch"]
        for gone in ("mail__send", "files__delete", "mcp.mail.send"):
            assert (await ann.call(gone)).error["data"]["error_type"] == "unknown_tool"
        assert (await ann.call("files__read")).text == "files:read"
        assert await bob.tools() == ["mail__send"]
        assert (await bob.call("mail__send")).text == "mail:send"


@pytest.mark.parametrize("version", GENERATIONS)
async def test_a_session_keeps_what_is_left_of_its_own_narrowing(version: str) -> None:
    async with (
        running_gateway(config("files", "mail")) as gateway,
        opened(f"{gateway.url}/review?tools=read,send", version) as ann,
    ):
        assert await ann.tools() == ["files__read", "mail__send"]
        await gateway.reload(NARROW)
        await until_reloaded(gateway)
        assert await ann.tools() == ["files__read"]


async def test_a_scope_disabled_by_a_reload_is_not_found_for_open_sessions() -> None:
    async with running_gateway(WIDE) as gateway, opened(f"{gateway.url}/review", GENERATIONS[0]) as ann:
        await ann.tools()
        off = config("files")
        off["scopes"]["review"]["enabled"] = False
        await gateway.reload(off)
        await until_reloaded(gateway)
        assert (await ann.ask("tools/list")).status == 404


async def test_a_running_call_ends_with_the_plan_of_its_start(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    servers = {"files": server("files", "slow"), "mail": server("mail", "send")}
    wide = {**WIDE, "servers": servers, "scopes": {"review": scope("files")}}
    narrow = {**wide, "scopes": {"review": scope("mail")}}
    async with running_gateway(wide) as gateway, opened(f"{gateway.url}/review", GENERATIONS[0]) as ann:
        await ann.tools()
        slow = asyncio.create_task(ann.call("files__slow", seconds=2, path=str(begun)))
        await until_there(begun)
        await gateway.reload(narrow)
        await until_reloaded(gateway)
        assert (await slow).text == "done"
        assert await ann.tools() == ["mail__send"]


async def test_a_bad_file_leaves_the_old_scopes_serving() -> None:
    async with running_gateway(WIDE) as gateway, opened(f"{gateway.url}/review", GENERATIONS[1]) as ann:
        before = await ann.tools()
        bad = config("files")
        bad["scopes"]["review"] |= {"allowed_servers": ["mail"]}
        await gateway.reload(bad)
        async with asyncio.timeout(15):
            while "configuration not reloaded" not in gateway.log:
                await asyncio.sleep(0.02)
        assert await ann.tools() == before


def script(touched: Path) -> Sequence[dict[str, Any]]:
    wait = {"op": "notice", "method": LIST_CHANGED}
    return [
        {"op": "tools"},
        {"op": "call", "name": "mail__send", "arguments": {}},
        {"op": "call", "name": "files__touch", "arguments": {"path": str(touched)}},
        wait,
        {"op": "tools"},
        {"op": "call", "name": "mail__send", "arguments": {}},
        {"op": "call", "name": "files__read", "arguments": {}},
    ]


@pytest.mark.parametrize(
    "caller",
    every_third(
        pytest.param(c, id=c.name, marks=pytest.mark.peers(c.peer)) for c in CALLERS if c.generation.value == "2025"
    ),
)
@pytest.mark.real_processes
async def test_a_real_client_handles_a_reduced_scope(caller: Caller, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    async with running_gateway(WIDE) as gateway:
        playing = asyncio.create_task(caller.play(script(touched), url=f"{gateway.url}/review"))
        await until_there(touched)
        await gateway.reload(NARROW)
        first, sent, _, _, after, refused, read = await playing
    assert first["value"] == ["files__read", "files__delete", "files__touch", "mail__send"]
    assert "mail:send" in str(sent["value"])
    assert after["value"] == ["files__read", "files__touch"]
    assert "unknown_tool" in str(refused["error"])
    assert "files:read" in str(read["value"])


async def test_a_task_and_its_audit_rows_name_the_set_of_tools_it_was_made_under() -> None:
    async with running_gateway(WIDE) as gateway, opened(f"{gateway.url}/review", GENERATIONS[0]) as ann:
        made = (await ann.ask("tools/call", {"name": "mail__send", "arguments": {}, "task": {"ttl": 60_000}})).result
        await ann.ask("tasks/result", {"taskId": made["taskId"]})
        await gateway.stop()
    store = open_store(gateway.state / "taskgate.db")
    rows = [row.entry for row in await store.ask(AuditRows())]
    task = await store.ask(FindTask(made["taskId"]))
    await store.close()
    (composed,) = [entry for entry in rows if entry.event == "scope" and entry.scope == "review"]
    assert task is not None
    assert task.scope_revision == composed.policy_revision
    body = {entry.event: entry.policy_revision for entry in rows if entry.task_id == made["taskId"]}
    assert set(body) == {"task_created", "task_dispatched", "task_completed"}
    assert set(body.values()) == {f"{task.policy_revision}/{task.scope_revision}"}


async def test_every_call_and_effective_set_has_an_audit_row_with_its_revision() -> None:
    async with running_gateway(WIDE) as gateway, opened(f"{gateway.url}/review", GENERATIONS[0]) as ann:
        await ann.call("mail__send")
        await gateway.reload(NARROW)
        await until_reloaded(gateway)
        await ann.call("files__read")
        await gateway.stop()
    store = open_store(gateway.state / "taskgate.db")
    rows = [row.entry for row in await store.ask(AuditRows())]
    await store.close()
    sets = [entry for entry in rows if entry.event == "scope" and entry.scope == "review"]
    assert [json.loads(entry.reason)["servers"] for entry in sets] == [["files", "mail"], ["files"]]
    calls = {entry.server: entry.policy_revision for entry in rows if entry.event == "call"}
    assert calls["mail"].endswith(f"/{sets[0].policy_revision}")
    assert calls["files"].endswith(f"/{sets[1].policy_revision}")
