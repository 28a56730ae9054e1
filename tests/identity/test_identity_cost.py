"""The cost of authentication per call, counted and not timed: with a configured token or one of an issuer, and with many callers.

Function calls of caller, gateway and server are counted as `tests.benchmarks.gate` does, in virtual time.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from tests.benchmarks.gate import calls, server
from tests.identity.issuer import an_issuer
from tests.virtual_time import Gateway, virtual_time

from taskgate import clock
from taskgate.identity.verifier import MAX_REMEMBERED, Verifier

DEARER = 1.05
MANY = 10_000


def secret(number: int) -> str:
    return f"token-of-caller-{number:05d}-0123456789abcdef"


def tokens(count: int) -> list[dict[str, Any]]:
    digests = (hashlib.sha256(secret(number).encode()).hexdigest() for number in range(count))
    return [
        {"id": f"caller-{number:05d}", "tenant": f"t{number % 100}", "sha256": d} for number, d in enumerate(digests)
    ]


async def cost(gate: Gateway, generation: str, token: str | None) -> float:
    caller = await gate.caller(generation, token=token)
    await caller.tools()

    async def call() -> None:
        assert (await caller.call("s__echo", {"text": "hi"})).text == "hi", "a refused call costs something else"

    return await calls(call)


def verifier_of(gate: Gateway) -> Verifier:
    verifier = gate.life.app.verifier
    assert isinstance(verifier, Verifier)
    return verifier


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_authentication_of_a_cached_token_costs_at_most_5_percent(generation: str) -> None:
    async with an_issuer() as issuer:
        async with Gateway({}, {"s": server()}) as gate:
            plain = await cost(gate, generation, None)
        auth = {"tokens": tokens(1), "auth": {"jwt": [{"issuer": issuer.url, "audiences": ["gate"]}]}}
        async with Gateway(auth, {"s": server()}) as gate:
            ours = await cost(gate, generation, secret(0))
            signed = await cost(gate, generation, issuer.token(exp=int(clock.wall()) + 100_000))
            asked = len(issuer.asked)
            assert await cost(gate, generation, issuer.token(exp=int(clock.wall()) + 100_001)) <= plain * DEARER
            assert len(issuer.asked) == asked, "a remembered key needs no fetch"
    assert plain > 100, "something was counted"
    assert ours <= plain * DEARER, (ours, plain)
    assert signed <= plain * DEARER, (signed, plain)


@virtual_time
async def test_the_cost_of_a_call_does_not_grow_with_ten_thousand_principals() -> None:
    async with an_issuer() as issuer:
        auth = {"jwt": [{"issuer": issuer.url, "audiences": ["gate"]}]}
        signed = issuer.token(exp=int(clock.wall()) + 100_000)
        limits = {
            "calls_per_caller_per_second": 1_000_000,
            "burst_per_caller": 1_000_000,
            "calls_in_flight_per_caller": 100,
            "calls_in_flight_per_tenant": 100,
        }
        async with Gateway({"tokens": tokens(1), "auth": auth, "limits": limits}, {"s": server()}) as gate:
            few = {kind: await cost(gate, "2026", token) for kind, token in (("ours", secret(0)), ("signed", signed))}
        async with Gateway({"tokens": tokens(MANY), "auth": auth, "limits": limits}, {"s": server()}) as gate:
            await cost(gate, "2026", signed)
            remembered = verifier_of(gate)._remembered
            (known,) = remembered.values()
            for number in range(MANY):
                remembered[number.to_bytes(32)] = known
            for number in range(1, 200):
                caller = await gate.caller("2026", token=secret(number * 50))
                assert (await caller.call("s__echo", {"text": "hi"})).text == "hi"
            many = {kind: await cost(gate, "2026", token) for kind, token in (("ours", secret(0)), ("signed", signed))}
            assert all(many[kind] <= few[kind] * 1.01 for kind in few), (few, many)


@virtual_time
async def test_cached_tokens_are_bounded() -> None:
    async with an_issuer() as issuer:
        auth = {"jwt": [{"issuer": issuer.url, "audiences": ["gate"]}]}
        async with Gateway({"auth": auth}, {"s": server()}) as gate:
            await (await gate.caller("2026", token=issuer.token())).call("s__echo", {"text": "hi"})
            remembered = verifier_of(gate)._remembered
            (known,) = remembered.values()
            for number in range(MAX_REMEMBERED - 1):
                remembered[number.to_bytes(32)] = known
            await (await gate.caller("2026", token=issuer.token(sub="bob"))).call("s__echo", {"text": "hi"})
            assert len(remembered) == MAX_REMEMBERED
