"""`add_server` by a caller: off, then governed like any call, and never a way into a private network."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.governance.approval_setup import DEADLINE, Setup, Stateful, eventually, running_setup

pytestmark = pytest.mark.virtual_time

FACADE = {"default": {"default_servers": ["*"], "mode": "both"}}
GUEST = {"name": "guest", "url": "https://guest.example/mcp"}


def text_of(reply: dict[str, Any]) -> str:
    return str(reply.get("error") or reply["result"]["content"][0]["text"])


async def add(caller: Stateful, **arguments: Any) -> dict[str, Any]:
    return await caller.call("add_server", arguments)


async def audited(setup: Setup, *words: bytes) -> bytes:
    """The row of the audit log that holds these words, as soon as there is one."""

    async def found() -> bytes | None:
        (store,) = setup.gateway.state.glob("*.db")
        with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as reading:
            rows = [bytes(row[0]) for row in reading.execute("SELECT content FROM audit")]
        return next((row for row in rows if all(word in row for word in words)), None)

    return bytes(await eventually(found))


async def test_adding_servers_is_off_by_default(tmp_path: Path) -> None:
    async with running_setup(tmp_path, scopes=FACADE) as setup:
        assert "facade.add_server" in text_of(await add(await setup.stateful(), **GUEST))


async def test_adding_a_server_can_be_denied_or_require_approval(tmp_path: Path) -> None:
    rules = [
        {"match": "taskgate:remove_server", "action": "deny"},
        {"match": "taskgate:add_server", "action": "approve", "approval": "ops"},
    ]
    settings: dict[str, Any] = {"scopes": FACADE, "facade": {"add_server": "on"}, "governance": {"rules": rules}}
    async with running_setup(tmp_path, **settings) as setup:
        caller = await setup.stateful()
        waiting = asyncio.create_task(add(caller, **GUEST))
        (row,) = await setup.open_approvals()
        assert (row["server"], row["tool"]) == ("taskgate", "add_server")
        await setup.deny(row["id"], reason="Not this one")
        assert "Not this one" in text_of(await asyncio.wait_for(waiting, DEADLINE))
        waiting = asyncio.create_task(add(await setup.stateful(), **GUEST))
        (row,) = await setup.open_approvals()
        assert (await setup.approve(row["id"])).status_code == 200
        # Approved, so it was tried; where this test runs the name leads nowhere.
        assert "The server was not added" in text_of(await asyncio.wait_for(waiting, DEADLINE))


async def test_adding_a_server_is_denied_by_a_default_policy(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"scopes": FACADE, "facade": {"add_server": "on"}}
    governance = {"defaults": {"action": "deny"}, "rules": [{"match": "read_*", "action": "forward"}]}
    async with running_setup(tmp_path, governance=governance, **settings) as setup:
        assert "not permitted" in text_of(await add(await setup.stateful(), **GUEST))
        assert await audited(setup, b"call_denied", b"add_server")


async def test_private_addresses_cannot_be_added(tmp_path: Path) -> None:
    async with running_setup(tmp_path, scopes=FACADE, facade={"add_server": "on"}) as setup:
        caller = await setup.stateful()
        port = setup.gateway.port
        for url in (
            f"https://localhost:{port}/mcp",
            f"https://127.0.0.1:{port}/mcp",
            f"https://[::ffff:127.0.0.1]:{port}/mcp",
            f"https://[::1]:{port}/mcp",
            "https://169.254.169.254/latest",
        ):
            refused = text_of(await add(caller, name="guest", url=url))
            assert "private network" in refused, url
        assert "only https" in text_of(await add(caller, name="guest", url=f"http://127.0.0.1:{port}/mcp"))


async def test_no_program_is_started_for_a_caller_over_http(tmp_path: Path) -> None:
    async with running_setup(tmp_path, scopes=FACADE, facade={"add_server": "on"}) as setup:
        refused = text_of(await add(await setup.stateful(), name="guest", command="/bin/true"))
        assert "started for local callers only" in refused


@pytest.mark.parametrize("headers", [{"Authorization": "a\r\nX: y"}, {"X\n": "a"}, {"": "a"}, {"Content-Length": "5"}])
async def test_headers_that_would_break_a_request_are_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    async with running_setup(tmp_path, scopes=FACADE, facade={"add_server": "on"}) as setup:
        reply = await add(await setup.stateful(), **GUEST, headers=headers)
        assert "The server was not added" in text_of(reply)
        assert "header" in text_of(reply)
