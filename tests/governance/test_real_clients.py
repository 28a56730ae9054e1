"""The whole approval flow with real clients: the SDKs of both generations, as they come, in their own processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.governance.stage import Stage, a_stage, eventually
from tests.harness.peers import CALLERS, Caller, every_third

pytestmark = pytest.mark.asyncio(loop_scope="module")
FLOWS = every_third(
    pytest.param(caller, op, id=f"{caller.name}-{op}", marks=pytest.mark.peers(caller.peer))
    for caller in CALLERS
    for op in (("call", "task") if caller.tasks else ("call",))
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    tasks = {"execute_on": "approval", "approval_poll_interval_ms": 1000}
    async with a_stage(tmp_path_factory.mktemp("clients"), tasks=tasks) as stage:
        yield stage


async def approve_when_asked(stage: Stage) -> None:
    async def asked() -> Any:
        rows = (await stage.api("GET", "/api/approvals")).json()
        return rows or None

    (row,) = await eventually(asked, within=60)
    assert (await stage.approve(row["id"], token="ann-token")).status_code == 200


@pytest.mark.parametrize(("caller", "op"), FLOWS)
async def test_a_real_client_gets_its_result_after_an_approval(one_stage: Stage, caller: Caller, op: str) -> None:
    one_stage.notes.unlink(missing_ok=True)
    script = [{"op": op, "name": "s__delete_it", "arguments": {"path": caller.name}}]
    approving = asyncio.create_task(approve_when_asked(one_stage))
    try:
        (seen,) = await caller.play(script, url=one_stage.gateway.url)
    finally:
        approving.cancel()
        await asyncio.gather(approving, return_exceptions=True)
    if op == "call" and "error" in seen:
        # For a client that declares tasks, tools that require approval require a task.
        assert seen["error"]["data"]["error_type"] == "task_required"
        assert one_stage.sent() == []
        return
    assert "did delete_it" in str(seen), seen
    assert [sent["arguments"] for sent in one_stage.sent()] == [{"path": caller.name}]
