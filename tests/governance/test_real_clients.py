"""The whole approval flow with real clients: the SDKs of both generations, as they come, in their own processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.governance.approval_setup import Setup, eventually, running_setup
from tests.harness.peers import CALLERS, Caller, every_third

pytestmark = pytest.mark.asyncio(loop_scope="module")
FLOWS = every_third(
    pytest.param(caller, op, id=f"{caller.name}-{op}", marks=pytest.mark.peers(caller.peer))
    for caller in CALLERS
    for op in (("call", "task") if caller.tasks else ("call",))
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_setup(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Setup]:
    tasks = {"execute_on": "approval", "approval_poll_interval_ms": 1000}
    async with running_setup(tmp_path_factory.mktemp("clients"), tasks=tasks) as setup:
        yield setup


async def approve_when_asked(setup: Setup) -> None:
    async def asked() -> Any:
        rows = (await setup.api("GET", "/api/approvals")).json()
        return rows or None

    (row,) = await eventually(asked, within=60)
    assert (await setup.approve(row["id"], token="ann-token")).status_code == 200


@pytest.mark.parametrize(("caller", "op"), FLOWS)
async def test_a_real_client_gets_its_result_after_an_approval(shared_setup: Setup, caller: Caller, op: str) -> None:
    shared_setup.notes.unlink(missing_ok=True)
    script = [{"op": op, "name": "s__delete_it", "arguments": {"path": caller.name}}]
    approving = asyncio.create_task(approve_when_asked(shared_setup))
    try:
        (seen,) = await caller.play(script, url=shared_setup.gateway.url)
    finally:
        approving.cancel()
        await asyncio.gather(approving, return_exceptions=True)
    if op == "call" and "error" in seen:
        # For a client that declares tasks, tools that require approval require a task.
        assert seen["error"]["data"]["error_type"] == "task_required"
        assert shared_setup.sent() == []
        return
    assert "did delete_it" in str(seen), seen
    assert [sent["arguments"] for sent in shared_setup.sent()] == [{"path": caller.name}]
