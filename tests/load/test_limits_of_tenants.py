"""Limits of one caller and of all callers of one tenant together: rate, calls at once, tasks, approvals, sessions, and lines."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from tests.identity.issuer import an_issuer
from tests.virtual_time import Call, Caller, Gateway, Reply, Upstream, until, virtual_time

TASK = {"ttl": 600_000}


def token_of(tenant: str, name: str) -> dict[str, Any]:
    return {"id": name, "tenant": tenant, "sha256": hashlib.sha256(secret(name).encode()).hexdigest()}


def secret(name: str) -> str:
    return f"{name}-token-0123456789abcdef"


TOKENS = [token_of("acme", "ann"), token_of("acme", "bob"), token_of("globex", "eve")]


def server() -> Upstream:
    upstream = Upstream("both")

    @upstream.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(20)
        return "done"

    @upstream.tool("quick")
    async def quick(_call: Call) -> str:
        return "done"

    return upstream


def config(rules: list[dict[str, Any]] | None = None, **limits: float) -> dict[str, Any]:
    return {"tokens": TOKENS, "limits": limits, "governance": {"rules": rules or []}}


async def callers(gate: Gateway, generation: str = "2025") -> list[Caller]:
    return [await gate.caller(generation, token=secret(name)) for name in ("ann", "bob", "eve")]


def refused(reply: Reply, error_type: str, words: str) -> None:
    error = reply.last["error"]
    assert (error["data"]["error_type"], error["data"]["executed"]) == (error_type, "no"), error
    assert words in error["message"]


@virtual_time
async def test_open_tasks_of_a_tenant_are_counted_together_until_they_end() -> None:
    async with Gateway(config(open_tasks_per_tenant=2), {"s": server()}) as gate:
        ann, bob, eve = await callers(gate)
        for caller in (ann, bob):
            assert "task" in (await caller.call("s__slow", task=TASK)).result
        refused(await ann.call("s__slow", task=TASK), "overloaded", "2 open tasks of all callers of your tenant")
        assert "task" in (await eve.call("s__slow", task=TASK)).result
        await gate.advance(30)
        assert "task" in (await bob.call("s__slow", task=TASK)).result


@virtual_time
async def test_a_limit_of_tasks_is_enforced_after_a_crash() -> None:
    async with Gateway(config(open_tasks_per_tenant=1), {"s": server()}) as gate:
        ann, bob, _eve = await callers(gate)
        await ann.call("s__slow", task=TASK)
        gate.crash()
        await gate.start()
        _ann, bob, eve = await callers(gate)
        refused(await bob.call("s__slow", task=TASK), "overloaded", "1 open tasks of all callers of your tenant")
        assert "task" in (await eve.call("s__slow", task=TASK)).result


@virtual_time
async def test_pending_approvals_of_a_tenant_are_counted_together() -> None:
    held = [{"match": "quick", "action": "approve"}]
    async with Gateway(config(held, pending_approvals_per_tenant=2), {"s": server()}) as gate:
        ann, bob, eve = await callers(gate)
        for caller in (ann, bob):
            assert "task" in (await caller.call("s__quick", task=TASK)).result
        again = await bob.call("s__quick", {"again": True}, task=TASK)
        refused(again, "overloaded", "2 pending approvals of all callers of your tenant")
        assert "task" in (await eve.call("s__quick", task=TASK)).result
        waiting = (await gate.operator("GET", "/api/v1/approvals")).json()
        ours = next(one["id"] for one in waiting if "acme/ann" in str(one))
        await gate.operator("POST", f"/api/v1/approvals/{ours}/deny", {})
        assert "task" in (await bob.call("s__quick", {"again": True}, task=TASK)).result


@virtual_time
async def test_the_rate_of_a_tenant_is_for_all_of_its_callers() -> None:
    async with Gateway(config(calls_per_tenant_per_second=1, burst_per_tenant=3), {"s": server()}) as gate:
        for generation in ("2025", "2026"):
            ann, bob, eve = await callers(gate, generation)
            for caller in (ann, bob, ann):
                assert (await caller.call("s__quick")).text == "done"
            refused(await bob.call("s__quick"), "rate_limited", "The callers of your tenant are calling too often")
            assert (await eve.call("s__quick")).text == "done"
            await gate.advance(1.01)
            assert (await bob.call("s__quick")).text == "done"
            await gate.advance(60)


@virtual_time
async def test_a_caller_who_is_too_fast_does_not_use_up_the_rate_of_the_tenant() -> None:
    limits = {
        "calls_per_caller_per_second": 1,
        "burst_per_caller": 1,
        "calls_per_tenant_per_second": 1,
        "burst_per_tenant": 2,
    }
    async with Gateway(config(None, **limits), {"s": server()}) as gate:
        ann, bob, _eve = await callers(gate)
        assert (await ann.call("s__quick")).text == "done"
        for _ in range(5):
            refused(await ann.call("s__quick"), "rate_limited", "You are calling too often")
        assert (await bob.call("s__quick")).text == "done"


@virtual_time
async def test_calls_at_once_are_limited_for_a_caller_and_for_a_tenant() -> None:
    limits = {"calls_in_flight_per_caller": 2, "calls_in_flight_per_tenant": 3}
    upstream = server()
    async with Gateway(config(None, **limits), {"s": upstream}) as gate:
        ann, bob, eve = await callers(gate)
        open_calls = [caller.begin_call("s__slow") for caller in (ann, ann, bob)]
        await until(lambda: upstream.count("slow") == 3)
        refused(await ann.call("s__quick"), "overloaded", "You are calling too much at once: 2 calls are open")
        refused(
            await bob.call("s__quick"), "overloaded", "The callers of your tenant are calling too much at once: 3 calls"
        )
        assert (await eve.call("s__quick")).text == "done"
        await open_calls[0].disconnect()
        await gate.advance(25)
        assert [(await call.done()).text for call in open_calls[1:]] == ["done", "done"]
        for caller in (ann, bob):
            assert (await caller.call("s__quick")).text == "done"


@virtual_time
async def test_several_gateways_share_the_limits_of_caller_and_tenant() -> None:
    limits = {"calls_per_tenant_per_second": 2, "burst_per_tenant": 4, "calls_in_flight_per_caller": 2}
    upstream = server()
    async with Gateway(config(None, **limits), {"s": upstream}) as gate:
        gate.life.app.gateway.console.load.budgets.divide(1, 2)
        ann, bob, _eve = await callers(gate)
        for caller in (ann, bob):
            assert (await caller.call("s__quick")).text == "done"
        refused(await ann.call("s__quick"), "rate_limited", "of your tenant")
        await gate.advance(60)
        ann.begin_call("s__slow")
        await until(lambda: upstream.count("slow") == 1)
        refused(await ann.call("s__quick"), "overloaded", "1 calls are open")


@virtual_time
async def test_sessions_of_a_tenant_are_counted_together() -> None:
    async with Gateway(config(sessions_per_tenant=2), {"s": server()}) as gate:
        ann, bob, _eve = await callers(gate)
        for caller in (ann, bob):
            await caller.call("s__quick")
        third = gate.http(
            "POST", "/mcp",
            body=b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
            b'"clientInfo":{"name":"c","version":"1"}}}',
            headers={"authorization": f"Bearer {secret('ann')}", "content-type": "application/json",
                     "accept": "application/json, text/event-stream"},
        )  # fmt: skip
        assert b"Your tenant has too many sessions" in (await third.done()).body
        await bob.close()
        assert (await (await gate.caller("2025", token=secret("ann"))).call("s__quick")).text == "done"


ASKING = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 50}


def asking_server() -> Upstream:
    upstream = Upstream("2025")

    @upstream.tool("ask")
    async def ask(call: Call) -> str:
        answer = await call.ask("sampling/createMessage", ASKING)
        return str(answer["content"]["text"]) if "content" in answer else str(answer)

    return upstream


def model_answers(_body: bytes) -> tuple[int, bytes]:
    body = {"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
    spent = {"prompt_tokens": 10, "completion_tokens": 30}
    return 200, json.dumps({"model": "m", "choices": [body], "usage": spent}).encode()


@virtual_time
@pytest.mark.parametrize("budget", [{"tokens_per_hour": 240}, {"money_per_hour": 240.0}, {"requests_per_minute": 3}])
async def test_each_of_several_gateways_has_its_share_of_a_servers_budget(budget: dict[str, Any]) -> None:
    """Each answer costs 40 tokens of one unit of money, and is let in if its estimate (about 60) still fits."""
    async with an_issuer() as vendor:
        vendor.pages["/v1/chat/completions"] = model_answers
        model = {"name": "m", "input_price": 1e6, "output_price": 1e6}
        provider = {"kind": "openai", "base_url": f"{vendor.url}/v1", "models": [model], "budgets": budget}
        given = {**config(None), "providers": {"house": provider}, "servers": {"s": {"sampling": "provider"}}}
        async with Gateway(given, {"s": asking_server()}) as gate:
            ann, _bob, _eve = await callers(gate)
            gate.life.app.gateway.console.load.budgets.divide(0, 3)
            assert (await ann.call("s__ask")).text == "hello"
            assert "sampling_" in (await ann.call("s__ask")).text, "a third of it is less than two answers"
            gate.life.app.gateway.console.load.budgets.divide(0, 1)
            assert (await ann.call("s__ask")).text == "hello"
            assert vendor.count("/v1/chat/completions") == 2


@virtual_time
@pytest.mark.parametrize(
    "limit", [{"sampling_tokens_per_tenant_per_hour": 150}, {"sampling_money_per_tenant_per_hour": 150.0}]
)
async def test_the_cost_of_models_is_counted_for_all_callers_of_a_tenant(limit: dict[str, Any]) -> None:
    """Each answer costs 40 tokens of one unit of money; a request is admitted if its estimate (about 60) still fits."""
    async with an_issuer() as vendor:
        vendor.pages["/v1/chat/completions"] = model_answers
        model = {"name": "m", "input_price": 1e6, "output_price": 1e6}
        provider = {"kind": "openai", "base_url": f"{vendor.url}/v1", "models": [model]}
        given = {**config(None, **limit), "providers": {"house": provider}, "servers": {"s": {"sampling": "provider"}}}
        async with Gateway(given, {"s": asking_server()}) as gate:
            ann, bob, eve = await callers(gate)
            for caller in (ann, bob, ann):
                assert (await caller.call("s__ask")).text == "hello"
            refusal = (await bob.call("s__ask")).text
            assert "sampling_budget_exceeded" in refusal
            assert "This tenant's budget of" in refusal
            assert vendor.count("/v1/chat/completions") == 3
            assert (await eve.call("s__ask")).text == "hello"
            await gate.advance(3601)
            _ann, bob, eve = await callers(gate)
            assert (await bob.call("s__ask")).text == "hello"
            gate.life.app.gateway.console.load.budgets.divide(0, 3)
            assert "sampling_budget_exceeded" in (await eve.call("s__ask")).text, (
                "a third of it is less than one answer"
            )
