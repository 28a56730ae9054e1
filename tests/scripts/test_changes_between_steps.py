"""Scripts whose world changes while they wait: a revoked credential, a tool that vanished or changed, a smaller scope."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tests.scripts.test_running_scripts import APPROVE_BUY, ON, approve_all, shop, started
from tests.seam import Gateway, seam

TOKENS = {"tokens": [{"id": "ann", "sha256": hashlib.sha256(b"ann").hexdigest()}]}
TWICE = """
told = []
for n in (1, 2):
    try:
        told.append(await shop.buy(n=n))
    except Exception as e:
        told.append([tool_error(e).type, tool_error(e).executed])
told
"""


async def result_of(gate: Gateway, task: str) -> Any:
    """The value of a script, read from the store: its caller may no longer be allowed to."""
    for _ in range(100):
        body = await gate.life.app.store.result_bytes(task)
        if body is not None:
            return json.loads(body)["structuredContent"]["result"]
        await gate.advance(1)
    raise AssertionError("the script did not end")


async def revoke(gate: Gateway) -> None:
    assert (await gate.operator("POST", "/api/v1/tokens/revoke", {"name": "ann"})).status == 200


@seam
async def test_script_makes_no_more_calls_after_its_callers_token_was_revoked() -> None:
    store = shop()
    async with Gateway({**ON, **TOKENS}, {"shop": store}) as gate:
        caller = await gate.caller("2025", token="ann")
        task = await started(gate, caller, "await sleep(60)\n" + TWICE.strip())
        await gate.advance(5)
        await revoke(gate)
        await gate.advance(120)
        assert await result_of(gate, task) == [["credential_revoked", "no"]] * 2
        assert store.count("buy") == 0


@seam
async def test_call_that_waits_for_an_approval_is_not_sent_after_the_token_was_revoked() -> None:
    store = shop()
    async with Gateway({**ON, **TOKENS, **APPROVE_BUY}, {"shop": store}) as gate:
        caller = await gate.caller("2025", token="ann")
        task = await started(gate, caller, TWICE)
        await gate.advance(5)
        await revoke(gate)
        await gate.restart()
        assert await approve_all(gate) == 1
        assert await result_of(gate, task) == [["credential_revoked", "no"]] * 2
        assert store.count("buy") == 0


@seam
async def test_script_that_began_after_a_revocation_makes_calls() -> None:
    store = shop()
    new = {"tokens": [{"id": "ann", "sha256": hashlib.sha256(b"new").hexdigest()}]}
    async with Gateway({**ON, **TOKENS}, {"shop": store}) as gate:
        await gate.caller("2025", token="ann")
        await revoke(gate)
        await gate.advance(1)
        await gate.reload({**ON, **new})
        task = await started(gate, await gate.caller("2025", token="new"), TWICE)
        assert await result_of(gate, task) == ["bought 1", "bought 2"]
