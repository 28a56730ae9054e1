"""Conditions on arguments that are missing, large, deep or of another type, policies that fail, and a very long file of rules."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.catalog.test_omitted_tools import calls_of, server
from tests.governance.test_conditions import configured, tool
from tests.harness.cpu_time import slowness, untraced
from tests.virtual_time import Gateway, virtual_time

from taskgate.assembly.open_app import build_for_check
from taskgate.config.load import load

MEGABYTE = "m" * 2**20
DENIED, INVALID, RAN = "policy_denied", "invalid_params", "ran pay"


def deep(levels: int, value: Any = 1) -> Any:
    for _ in range(levels):
        value = {"a": value}
    return value


def path(levels: int) -> str:
    return ".".join(["argument", *"a" * levels])


# What is denied because a condition cannot be evaluated would be forwarded if that counted as not met.
CALLS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    # of 1 MB
    ({"argument.note": "*evil*"}, {"note": MEGABYTE}, DENIED),
    ({"argument.note": {"not": "*good*"}}, {"note": MEGABYTE}, DENIED),
    ({"argument.note": "evil"}, {"note": MEGABYTE}, RAN),
    ({"argument.note": {"length": "> 1000000"}}, {"note": MEGABYTE}, DENIED),
    ({"argument.note": {"length": "< 1000000"}}, {"note": MEGABYTE}, RAN),
    ({"argument.note": {"present": "false"}}, {"note": MEGABYTE}, RAN),
    ({"argument.other": "*evil*"}, {"note": MEGABYTE}, RAN),
    # deep
    ({path(16): "5"}, {"a": deep(16, 5)}, DENIED),
    ({path(16): "5"}, deep(16, 5), DENIED),
    ({path(16): "5"}, deep(16, 6), RAN),
    ({path(2): "5"}, deep(60), DENIED),
    ({path(2): {"present": "false"}}, deep(60), RAN),
    ({"argument.b": "5"}, deep(64), RAN),
    ({"argument.b": "5"}, deep(65), INVALID),
    # missing
    ({"argument.amount": "> 1000"}, {}, RAN),
    ({"argument.amount": {"not": "1..1000"}}, {}, DENIED),
    ({"argument.amount": {"present": "false"}}, {}, DENIED),
    ({"argument.to.city": "Rome"}, {"to": None}, RAN),
    ({"argument.to.city": {"not": "Rome"}}, {"to": None}, DENIED),
    # of another type
    ({"argument.amount": "> 1000"}, {"amount": "5000"}, DENIED),
    ({"argument.amount": "> 1000"}, {"amount": [5000]}, DENIED),
    ({"argument.amount": "> 1000"}, {"amount": {"value": 5000}}, DENIED),
    ({"argument.amount": "> 1000"}, {"amount": True}, DENIED),
    ({"argument.amount": "> 1000"}, {"amount": None}, RAN),
    ({"argument.amount": "> 1000"}, {"amount": 10**400}, DENIED),
    ({"argument.to": "x*"}, {"to": 5}, DENIED),
    ({"argument.to": "x"}, {"to": ["x"]}, DENIED),
    ({"argument.to.city": "Rome"}, {"to": "Rome"}, DENIED),
    # lists
    ({"argument.to.*": "x"}, {"to": ["y", "x"]}, DENIED),
    ({"argument.to.*": "x"}, {"to": ["y", "z"]}, RAN),
    ({"argument.to.*": "x"}, {"to": []}, RAN),
    ({"argument.to.*": "x"}, {"to": ["y"] * 10_000}, RAN),
    ({"argument.to.*": "x"}, {"to": ["y"] * 10_001}, DENIED),
    ({"argument.to.*": "x"}, {"to": ["y"] * 20_000}, INVALID),
    # read in two ways
    ({"argument.amount": "> 1000"}, {"amount": 5, "Amount": 5000}, INVALID),
]


def config(*rules: dict[str, Any]) -> dict[str, Any]:
    return configured(*rules, limits={"request_bytes": "4MiB"})


async def outcome(caller: Any, arguments: dict[str, Any]) -> str:
    reply = await caller.call("pay", arguments)
    return reply.error["data"]["error_type"] if "error" in reply.last else reply.text


@pytest.mark.parametrize("generation", ["2025", "2026"])
@virtual_time
async def test_call_is_denied_if_a_condition_is_met_or_cannot_be_evaluated(generation: str) -> None:
    upstream, sent = server(tool("pay"), generation=generation), 0
    async with Gateway(config(), {"a": upstream}) as gate:
        caller = await gate.caller(generation)
        for when, arguments, expected in CALLS:
            await gate.reload(config({"match": "pay", "when": when, "action": "deny"}))
            assert await outcome(caller, arguments) == expected, when
            sent += expected == RAN
            assert calls_of(upstream, "pay") == sent, "nothing else reaches the server"


@pytest.mark.parametrize(
    ("when", "arguments", "expected"),
    [
        ({"argument.amount": "< 10"}, {"amount": 5}, RAN),
        ({"argument.amount": "< 10"}, {"amount": "5"}, DENIED),
        ({"argument.amount": "< 10"}, {}, DENIED),
        ({"argument.to.*": "x"}, {"to": ["x", "x"]}, RAN),
        ({"argument.to.*": "x"}, {"to": ["x", "y"]}, DENIED),
        ({"argument.note": "m*"}, {"note": "mm"}, RAN),
        ({"argument.note": "m*"}, {"note": MEGABYTE}, DENIED),
        ({"argument.note": {"not": "x*"}}, {"note": MEGABYTE}, DENIED),
    ],
)
@virtual_time
async def test_rule_forwards_only_if_its_condition_is_met(
    when: dict[str, Any], arguments: dict[str, Any], expected: str
) -> None:
    rules: list[dict[str, Any]] = [
        {"match": "pay", "when": when, "action": "forward"},
        {"match": "pay", "action": "deny"},
    ]
    async with Gateway(config(*rules), {"a": server(tool("pay"))}) as gate:
        assert await outcome(await gate.caller("2025"), arguments) == expected


FORWARD = 'permit (principal, action == Taskgate::Action::"Forward", resource)'


@pytest.mark.parametrize(
    ("policies", "arguments", "expected"),
    [
        (f"{FORWARD};", {}, RAN),
        (f"{FORWARD} when {{ context.arguments.amount < 5 }};", {"amount": 1}, RAN),
        (f"{FORWARD} when {{ context.arguments.amount < 5 }};", {}, DENIED),
        (f"{FORWARD} when {{ context.arguments.amount < 5 }};", {"amount": "1"}, DENIED),
        (f'{FORWARD}; forbid (principal, action, resource) when {{ context.tenant == "x" }};', {}, RAN),
        (f'{FORWARD}; forbid (principal, action, resource) when {{ context.arguments.to like "x*" }};', {}, DENIED),
        (
            f'{FORWARD}; forbid (principal, action, resource) when {{ context.arguments.to like "x*" }};',
            {"to": 5},
            DENIED,
        ),
    ],
)
@virtual_time
async def test_error_in_a_policy_denies_the_call(policies: str, arguments: dict[str, Any], expected: str) -> None:
    upstream = server(tool("pay"))
    start = config({"match": "pay", "when": {"argument.skip": {"present": "false"}}, "action": "policy"})
    async with Gateway(config(), {"a": upstream}) as gate:
        (gate.folder / "pay.cedar").write_text(f"{policies}\n// ...\n")
        await gate.reload({**start, "cedar": {"policies": ["./pay.cedar"]}})
        assert await outcome(await gate.caller("2025"), arguments) == expected
        assert calls_of(upstream, "pay") == (expected == RAN)


RULES = 10_000
CPU_S = 30.0
"""Several times what it takes on an idle processor."""


def long_file(address: str) -> str:
    rules = [
        f"    - match: 'pay_{number}_*'\n      action: deny\n      when:\n        argument.amount: '> {number}'\n"
        f"        role: [intern, 'team-{number}-*']\n"
        for number in range(RULES)
    ]
    first = f"scopes: {{default: {{default_servers: ['*'], names: plain}}}}\nservers: {{a: {{url: '{address}'}}}}\n"
    last = "    - {match: pay, when: {argument.amount: '> 5'}, action: deny}\n"
    return f"{first}governance:\n  rules:\n{''.join(rules)}{last}"


@pytest.mark.unmeasured
def test_file_of_fifty_thousand_lines_is_checked_within_seconds(tmp_path: Path) -> None:
    file = tmp_path / "taskgate.yaml"
    text = long_file("http://127.0.0.1:9/mcp")
    assert text.count("\n") > 50_000
    file.write_text(text)
    with untraced():
        busy, began = slowness(), time.thread_time()
        assert build_for_check(load(file, {})) == 1
        assert (time.thread_time() - began) / busy < CPU_S


@virtual_time
async def test_file_of_fifty_thousand_lines_is_served_within_seconds() -> None:
    upstream = server(tool("pay"))
    async with Gateway(config(), {"a": upstream}) as gate:
        await gate.stop()
        gate.config_file.write_text(long_file(upstream.url))
        with untraced():
            busy, began = slowness(), time.thread_time()
            await gate.start()
            assert (time.thread_time() - began) / busy < CPU_S
        caller = await gate.caller("2025")
        assert [await outcome(caller, {"amount": amount}) for amount in (5, 6)] == [RAN, DENIED]
