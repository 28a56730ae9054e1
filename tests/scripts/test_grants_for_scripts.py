"""Grants that are limited to calls of one script, recognized by the digest of its source."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.scripts.test_running_scripts import APPROVE_BUY, ON, ended, shop, started, structured
from tests.virtual_time import Gateway, Reply, virtual_time

TWICE = "[await shop.buy(n=1), await shop.buy(n=2)]"


async def waiting(gate: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await gate.operator("GET", "/api/approvals")).json()
    return found


async def approve(gate: Gateway, **grant: Any) -> Reply:
    [one] = await waiting(gate)
    return await gate.operator("POST", f"/api/approvals/{one['id']}/approve", {"grant": {"minutes": 30, **grant}})


@virtual_time
async def test_grant_for_one_script_covers_no_other_call() -> None:
    store = shop()
    async with Gateway({**ON, **APPROVE_BUY}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, TWICE)
        await gate.advance(5)
        given = (await approve(gate, same_script=True)).json()["grant"]
        assert given["script_digest"] == f"sha256:{hashlib.sha256(TWICE.encode()).hexdigest()}"
        assert structured(await ended(caller, task))["result"] == ["bought 1", "bought 2"]
        again = await started(gate, caller, TWICE)
        assert structured(await ended(caller, again))["result"] == ["bought 1", "bought 2"]
        assert store.count("buy") == 4
        await started(gate, caller, TWICE + "  # changed")
        await gate.advance(5)
        assert len(await waiting(gate)) == 1
        caller.begin_call("shop__buy", {"n": 9})
        await gate.advance(5)
        assert len(await waiting(gate)) == 2
        assert store.count("buy") == 4


@virtual_time
async def test_grant_for_one_script_is_in_force_after_a_restart() -> None:
    store = shop()
    async with Gateway({**ON, **APPROVE_BUY}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, "await shop.buy(n=1)\nawait sleep(600)\nawait shop.buy(n=2)")
        await gate.advance(5)
        await approve(gate, same_script=True)
        await gate.advance(60)
        await gate.restart()
        assert structured(await ended(await gate.caller("2025"), task))["result"] == "bought 2"
        assert await waiting(gate) == []


@virtual_time
async def test_call_that_no_script_made_gives_no_grant_for_a_script() -> None:
    async with Gateway({**ON, **APPROVE_BUY}, {"shop": shop()}) as gate:
        (await gate.caller("2025")).begin_call("shop__buy", {"n": 1})
        await gate.advance(5)
        assert (await approve(gate, same_script=True)).status == 400


@virtual_time
async def test_plain_call_does_not_join_an_equal_call_of_a_script() -> None:
    store = shop()
    async with Gateway({**ON, **APPROVE_BUY}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, "await shop.buy(n=1)")
        await gate.advance(5)
        plain = caller.begin_call("shop__buy", {"n": 1})
        await gate.advance(5)
        for one in await waiting(gate):
            await gate.operator("POST", f"/api/approvals/{one['id']}/approve", {})
        assert (await plain.done()).text == "bought 1"
        assert structured(await ended(caller, task))["result"] == "bought 1"
        assert store.count("buy") == 2


@virtual_time
async def test_grant_for_one_script_covers_no_other_inputs() -> None:
    """What is approved for one path must not run for another."""
    store = shop()
    code = "[await shop.buy(n=inputs['n']), await shop.buy(n=inputs['n'])]"
    async with Gateway({**ON, **APPROVE_BUY}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, code, inputs={"n": 1, "note": "x"})
        await gate.advance(5)
        await approve(gate, same_script=True)
        assert structured(await ended(caller, task))["result"] == ["bought 1", "bought 1"]
        again = await started(gate, caller, code, inputs={"note": "x", "n": 1})
        assert structured(await ended(caller, again))["result"] == ["bought 1", "bought 1"]
        await started(gate, caller, code, inputs={"n": 2, "note": "x"})
        await gate.advance(5)
        assert len(await waiting(gate)) == 1
        assert store.count("buy") == 4


@virtual_time
async def test_card_of_a_call_from_a_script_shows_the_script() -> None:
    async with Gateway({**ON, **APPROVE_BUY}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        await started(gate, caller, "path = '/data'\nawait shop.buy(n=1)")
        await gate.advance(5)
        [one] = await waiting(gate)
        shown = (await gate.operator("GET", f"/api/approvals/{one['id']}")).json()
        assert "await shop.buy(n=1)" in shown["script"]
        assert shown["from_script"]["line"] == 2
