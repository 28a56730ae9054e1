"""The first request of each kind costs no more than the next: libraries are loaded before serving, or beside the event loop."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import free_port
from tests.harness.raw_client import RawClient
from tests.identity.issuer import Issuer, an_issuer

PAUSE_MS = 20.0
pytestmark = pytest.mark.fresh_interpreter

Ask = Callable[[Gateway, Issuer], Awaitable[None]]


async def signed_token(gateway: Gateway, issuer: Issuer) -> None:
    async with RawClient(gateway.url, stateless=True, headers={"authorization": f"Bearer {issuer.token()}"}) as caller:
        assert (await caller.request("tools/list")).result["tools"]


async def wrong_token(gateway: Gateway, issuer: Issuer) -> None:
    async with httpx2.AsyncClient() as client:
        reply = await client.post(gateway.url, headers={"authorization": "Bearer a.b.c"}, content=b"{}")
        assert reply.status_code == 401


async def opened(gateway: Gateway, path: str) -> int:
    async with httpx2.AsyncClient() as client:
        return (await client.get(f"http://127.0.0.1:{gateway.port}{path}")).status_code


async def metrics(gateway: Gateway, _issuer: Issuer) -> None:
    assert await opened(gateway, "/metrics") in (200, 401)


async def login_page(gateway: Gateway, _issuer: Issuer) -> None:
    for path in ("/", "/login", "/approvals", "/nowhere", "/api/v1/tasks"):
        assert await opened(gateway, path) < 500


async def checked_call(gateway: Gateway, _issuer: Issuer) -> None:
    async with RawClient(gateway.url) as caller:
        tools = {tool["name"]: tool for tool in (await caller.request("tools/list")).result["tools"]}
        name = next(name for name, tool in tools.items() if tool["inputSchema"].get("required"))
        await caller.request("tools/call", {"name": name, "arguments": {"nothing": 1}})
        task = await caller.request("tools/call", {"name": name, "arguments": {"nothing": 1}, "task": {"ttl": 60_000}})
        assert task.status == 200


async def completion(gateway: Gateway, _issuer: Issuer) -> None:
    async with RawClient(gateway.url) as caller:
        tools = (await caller.request("tools/list")).result["tools"]
        ref = {"type": "ref/tool", "name": tools[0]["name"]}
        for ref in ({"type": "ref/tool", "name": tools[0]["name"]}, {"type": "ref/prompt", "name": "x"}):
            await caller.request("completion/complete", {"ref": ref, "argument": {"name": "path", "value": "noets"}})


async def search(gateway: Gateway, _issuer: Issuer) -> None:
    async with RawClient(f"{gateway.url}/found") as caller:
        for tool in (await caller.request("tools/list")).result["tools"]:
            await caller.request("tools/call", {"name": tool["name"], "arguments": {"query": "raed flie"}})


ANONYMOUS: dict[str, Ask] = {
    "a call with arguments that are checked": checked_call,
    "completion": completion,
    "search": search,
    "metrics": metrics,
    "pages of the console": login_page,
}
BY_ISSUER: dict[str, Ask] = {"a signed token": signed_token, "a token that is none": wrong_token}


def slow_steps(notes: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []


@pytest.mark.parametrize("by_issuer", [False, True], ids=["anonymous", "by issuer"])
async def test_first_requests_do_not_block_the_event_loop(by_issuer: bool, tmp_path: Path) -> None:
    notes = tmp_path / "slow.jsonl"
    async with an_issuer(free_port()) as issuer:
        config = {
            "servers": {"files": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}},
            "scopes": {"default": {"default_servers": ["*"]}, "found": {"default_servers": ["*"], "mode": "search"}},
            "validate": "enforce",
            **({"auth": {"jwt": [{"issuer": issuer.url, "audiences": ["gate"]}]}} if by_issuer else {}),
        }
        env = {"TASKGATE_SLOW_STEPS": str(notes)}
        async with running_gateway(config, tmp_path / "gate", env, ("-m", "tests.pause.watched")) as gateway:
            slow: dict[str, list[dict[str, Any]]] = {}
            for name, ask in (BY_ISSUER if by_issuer else ANONYMOUS).items():
                before = len(slow_steps(notes))
                await ask(gateway, issuer)
                print(name, slow_steps(notes)[before:])
                slow[name] = [step for step in slow_steps(notes)[before:] if step["ms"] > PAUSE_MS]
    assert not any(slow.values()), slow
