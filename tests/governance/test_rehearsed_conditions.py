"""Rules with conditions, rehearsed on calls that a running gateway has recorded."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests.catalog.test_omitted_tools import server
from tests.governance.test_conditions import configured, set_clock, token, tool
from tests.virtual_time import Gateway, virtual_time

from taskgate.gateway.requests.request import LONGEST_CLIENT


async def recorded(gate: Gateway) -> None:
    """Two calls of `pay`, at 12:30: by ann with a large sum and 2025, and by bob with a small one and 2026."""
    set_clock(12, 30)
    for name, generation, amount in (("ann", "2025", 5000), ("bob", "2026", 5)):
        caller = await gate.caller(generation, token=name)
        assert (await caller.call("pay", {"amount": amount, "card": "4111"})).text == "ran pay"
    await gate.advance(15)


def config(**record: Any) -> dict[str, Any]:
    found = configured(servers={"a": {"trust_annotations": True}}, tokens=[token("ann", "intern"), token("bob")])
    return {**found, "governance": {"record": record}}


async def rehearsed(gate: Gateway, *rules: dict[str, Any]) -> dict[str, Any]:
    body = {"governance": yaml.safe_dump({"rules": list(rules)})}
    reply = await gate.operator("POST", "/api/v1/rules/rehearse", body)
    assert reply.status == 200, reply.json()
    return dict(reply.json())


ONLY_ANN = [
    {"argument.amount": "> 1000"},
    {"role": "intern"},
    {"caller": "ann"},
    {"token": "ann"},
    {"generation": "2025-11-25"},
]
BOTH = [
    {"time": "12:00-13:00 UTC"},
    {"risk": "reads"},
    {"client": "*"},
    {"from_script": "false"},
    {"scope": "default"},
    {"server": "a"},
    {"argument.none": {"present": "false"}},
]
NEITHER = [{"time": "outside 12:00-13:00 UTC"}, {"risk": "> reads"}, {"role": "boss"}, {"client": "none-*"}]


@virtual_time
async def test_recorded_calls_have_every_fact_that_rules_depend_on() -> None:
    async with Gateway(config(), {"a": server(tool("pay", readOnlyHint=True))}) as gate:
        await recorded(gate)
        for whens, changed in ((ONLY_ANN, 1), (BOTH, 2), (NEITHER, 0)):
            for when in whens:
                found = await rehearsed(gate, {"match": "pay", "when": when, "action": "deny"})
                assert (found["changed"], found["undecided"]) == (changed, 0), when
        found = await rehearsed(gate, {"match": "pay", "when": {"argument.amount": "> 1000"}, "action": "deny"})
        assert [row["caller"] for row in found["examples"]] == ["ann"]


@virtual_time
async def test_name_of_a_client_is_cut_before_it_is_compared_or_recorded() -> None:
    start = config()
    rules = [{"match": "pay", "when": {"client": "n" * LONGEST_CLIENT}, "action": "deny"}]
    async with Gateway(start, {"a": server(tool("pay"))}) as gate:
        caller = await gate.caller("2025", token="ann", client="n" * 5_000)
        await caller.call("pay", {})
        await gate.advance(15)
        (row,) = (await gate.operator("GET", "/api/v1/rules/recorded?since=1d")).json()["calls"]
        assert row["client"] == "n" * LONGEST_CLIENT
        assert (await rehearsed(gate, *rules))["changed"] == 1
        await gate.reload({**start, "governance": {"rules": rules}})
        assert (await caller.call("pay", {})).error["data"]["error_type"] == "policy_denied"


@virtual_time
async def test_call_is_undecided_if_a_condition_depends_on_what_was_redacted() -> None:
    async with Gateway(config(redact=["card"]), {"a": server(tool("pay", readOnlyHint=True))}) as gate:
        await recorded(gate)
        card = {"match": "pay", "when": {"argument.card": "4*"}, "action": "deny"}
        found = await rehearsed(gate, card)
        assert (found["changed"], found["undecided"]) == (0, 2)
        (row,) = found["tools"]
        assert row["why"] == "the condition argument.card matches 4* cannot be evaluated, because card was redacted"
        found = await rehearsed(gate, {"match": "*", "when": {"time": "12:00-13:00 UTC"}, "action": "deny"}, card)
        assert (found["changed"], found["undecided"]) == (2, 0), "the first rule decides without the arguments"


@pytest.mark.parametrize(
    ("test", "changed"),
    [
        ('context.risk == "reads"', 0),
        ('context.generation == "2025-11-25"', 1),
        ('context.client == "none"', 2),
        ("context.from_script", 2),
        ('context.role.contains("intern")', 1),
    ],
)
@virtual_time
async def test_policies_read_the_facts_of_recorded_calls(test: str, changed: int) -> None:
    """A call that the policy does not forward would be denied, so it changes."""
    start = config()
    async with Gateway(start, {"a": server(tool("pay", readOnlyHint=True))}) as gate:
        policy = f'permit (principal, action == Taskgate::Action::"Forward", resource) when {{ {test} }};\n'
        (gate.folder / "pay.cedar").write_text(policy + "// ...\n")
        await gate.reload({**start, "cedar": {"policies": ["./pay.cedar"]}})
        await recorded(gate)
        found = await rehearsed(gate, {"match": "pay", "action": "policy"})
        assert (found["changed"], found["undecided"]) == (changed, 0)
