"""Who answers the question of a server: every generation, transport and kind of call, with real clients.

A client with a callback is asked, and answers for its person. The question to a client without one waits for a person at the
gateway. No question is answered by a model.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.peers import ASKING, CALLERS, Caller, every_third

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
PY130, PY23_2025, PY23_2026, _, TS2_2025, TS2_2026 = CALLERS
QUESTION = "What is your name?"
DEADLINE_S = 120
TRANSPORTS = ("http", "stdio")
KINDS = ("plain", "promoted", "task", "script")
PLAIN: dict[str, Caller] = {"2025": PY23_2025, "2026": PY23_2026}
WITH_TASKS: dict[str, Caller] = {"2025": PY130, "2026": TS2_2026}
"""This line of Python's SDK has no tasks, so another one calls in these cells."""


def cells() -> list[Any]:
    """All 32: every third is part of `make test-programs`, the rest is long."""
    every = itertools.product(("2025", "2026"), TRANSPORTS, KINDS, (True, False))
    return every_third(
        pytest.param(
            caller := (WITH_TASKS if kind == "task" else PLAIN)[generation],
            transport,
            kind,
            has_callback,
            id=f"{generation}-{transport}-{kind}-{'callback' if has_callback else 'none'}",
            marks=[pytest.mark.peers(caller.peer, ASKING.peer)],
        )
        for generation, transport, kind, has_callback in every
    )


def cells_of_typescript() -> list[Any]:
    """The cells of plain, promoted and script calls with a callback, with the SDK of TypeScript."""
    return [
        pytest.param(
            caller,
            transport,
            kind,
            True,
            id=f"{caller.name}-{transport}-{kind}",
            marks=[pytest.mark.peers(caller.peer, ASKING.peer), pytest.mark.long],
        )
        for caller in (TS2_2025, TS2_2026)
        for transport in TRANSPORTS
        for kind in ("plain", "promoted", "script")
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateways() -> AsyncIterator[dict[str, Gateway]]:
    """Two gateways before the same servers; one of them makes tasks of plain calls at once."""
    async with AsyncExitStack() as stack:
        servers = {"http": {"url": await stack.enter_async_context(ASKING.http())}, "stdio": ASKING.stdio()}
        scopes = {name: {"default_servers": [name], "names": "plain", "scripts": "on"} for name in servers}
        found = {}
        for name, promote_after_ms in (("patient", 100_000), ("promoting", 200)):
            tasks = {"promote_after_ms": promote_after_ms, "grace_ms": 100_000}
            config = {"schema": 1, "servers": servers, "scopes": scopes, "tasks": tasks}
            found[name] = await stack.enter_async_context(running_gateway(config))
            await found[name].until_listed(*servers)
        yield found


def step(kind: str, server: str, after: Path) -> dict[str, Any]:
    match kind:
        case "promoted":
            return {"op": "followed", "name": "greet", "arguments": {"after": str(after)}}
        case "task":
            return {"op": "task", "name": "greet", "arguments": {}}
        case "script":
            return {"op": "call", "name": "run_script", "arguments": {"code": f"await {server}.greet()"}}
        case _:
            return {"op": "call", "name": "greet", "arguments": {}}


class Operator:
    """The API of a gateway, as an operator uses it while a client plays."""

    def __init__(self, gateway: Gateway, http: httpx2.AsyncClient, playing: asyncio.Task[Any]) -> None:
        self.base, self.http, self.playing = gateway.base, http, playing
        self.headers = {"Authorization": f"Bearer {(gateway.state / 'operator-token').read_text().strip()}"}

    async def until_some(self, path: str) -> list[dict[str, Any]]:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                rows = (await self.http.get(self.base + path, headers=self.headers)).json()
                tasks = rows["tasks"] if isinstance(rows, dict) else rows
                if found := [row for row in tasks if row.get("state") in (None, "running")]:
                    return found
                assert not self.playing.done(), self.playing.result()
                await asyncio.sleep(0.05)

    async def answer(self) -> dict[str, Any]:
        """Answer the question that waits, as a person at the gateway."""
        (question,) = await self.until_some("/api/v1/questions")
        given = {"action": "accept", "content": {"name": "Olga"}}
        path = f"{self.base}/api/v1/questions/{question['request_id']}"
        (await self.http.post(path, json=given, headers=self.headers)).raise_for_status()
        return question


@pytest.mark.parametrize(("caller", "transport", "kind", "has_callback"), [*cells(), *cells_of_typescript()])
async def test_the_person_at_the_client_or_at_the_gateway_answers(
    gateways: dict[str, Gateway], tmp_path: Path, caller: Caller, transport: str, kind: str, has_callback: bool
) -> None:
    gateway, after = gateways["promoting" if kind == "promoted" else "patient"], tmp_path / "promoted"
    async with httpx2.AsyncClient(timeout=DEADLINE_S) as http:
        url = f"{gateway.url}/{transport}"
        playing = asyncio.create_task(caller.play([step(kind, transport, after)], url=url, alone=not has_callback))
        operator = Operator(gateway, http, playing)
        if kind == "promoted":
            await operator.until_some("/api/v1/tasks")
            after.touch()
        if not has_callback:
            assert (await operator.answer())["params"]["message"] == QUESTION
        (seen,) = await playing
    assert "value" in seen, seen
    assert seen.get("questions", []) == ([["form", QUESTION]] if has_callback else [])
    assert f"accept:{'Ann' if has_callback else 'Olga'}" in str(seen["value"])
    if kind == "promoted":
        assert seen["value"]["notice"] is True
