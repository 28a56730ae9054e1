"""What the page of a tool, the page Rules and `taskgate scopes explain` show of conditions, and of the risk of a tool."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from tests.catalog.test_omitted_tools import server
from tests.console.test_console_pages import operator
from tests.governance.test_conditions import configured, token, tool
from tests.virtual_time import Gateway, virtual_time

from taskgate.assembly.explain_scope import Explained, explain_scope
from taskgate.core.scoping.session_request import NO_REQUEST

HELD = {"match": "pay", "when": {"argument.amount": "> 1000"}, "action": "approve", "approval": "money"}
NIGHT = {"match": "a:pay", "when": {"time": "22:00-06:00 UTC"}, "action": "deny", "reason": "not at night"}
MONEY = {"approval": {"money": {"channels": ["inbox"]}}}


def plain_text(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


async def page(gate: Gateway, path: str) -> str:
    return plain_text(await (await operator(gate)).text(path))


@virtual_time
async def test_page_of_a_tool_shows_what_depends_on_the_call() -> None:
    rules = [NIGHT, HELD, {"match": "drop", "when": {"risk": "destructive"}, "action": "deny"}]
    upstream = server(tool("pay"), tool("drop", destructiveHint=True), tool("read"))
    async with Gateway(configured(*rules, **MONEY), {"a": upstream}) as gate:
        await (await gate.caller("2025")).tools()
        pay = await page(gate, "/tool?server=a&tool=pay")
        assert (
            "A call is denied if time is 22:00-06:00 UTC rules[0] a:pay not at night "
            "needs approval (money) if argument.amount > 1000 rules[1] pay is allowed otherwise defaults" in pay
        )
        drop = await page(gate, "/tool?server=a&tool=drop")
        assert "A call is denied because risk is destructive rules[2] drop" in drop
        assert "A call is allowed defaults" in await page(gate, "/tool?server=a&tool=read")


@virtual_time
async def test_page_of_a_tool_shows_the_strictest_of_names_that_look_alike() -> None:
    async with Gateway(configured(HELD, **MONEY), {"a": server(tool("pay"), tool("PAY"))}) as gate:
        await (await gate.caller("2025")).tools()
        for name in ("pay", "PAY"):
            shown = await page(gate, f"/tool?server=a&tool={name}")
            assert "needs approval (money) if argument.amount > 1000" in shown
            assert "and at least" not in shown
        late = {"match": "PAY", "when": {"time": "22:00-06:00 UTC"}, "action": "deny"}
        await gate.reload(configured(HELD, late, **MONEY))
        shown = await page(gate, "/tool?server=a&tool=pay")
        assert "and at least is denied if time is 22:00-06:00 UTC" in shown


@pytest.mark.parametrize(
    ("trusted", "stated", "hints", "expected"),
    [
        (True, None, {"readOnlyHint": True}, "reads by its hints"),
        (False, None, {"readOnlyHint": True}, "undeclared its hints declare reads, which counts only with"),
        (False, None, {"destructiveHint": True}, "destructive by its hints"),
        (True, None, {}, "undeclared it has no hints"),
        (False, "reads", {"destructiveHint": True}, "reads by the configuration"),
    ],
)
@virtual_time
async def test_page_of_a_tool_shows_its_risk_and_where_it_comes_from(
    trusted: bool, stated: str | None, hints: dict[str, bool], expected: str
) -> None:
    servers = {"a": {"trust_annotations": trusted, "tools": {"pay": {"risk": stated}} if stated else {}}}
    async with Gateway(configured(servers=servers), {"a": server(tool("pay", **hints))}) as gate:
        await (await gate.caller("2025")).tools()
        assert f"Risk in rules {expected}" in await page(gate, "/tool?server=a&tool=pay")


@virtual_time
async def test_page_of_rules_shows_their_conditions() -> None:
    rules = [HELD, {"match": "drop", "from": "script", "when": {"role": "x<b>"}, "action": "deny"}]
    async with Gateway(configured(*rules, **MONEY), {"a": server(tool("pay"))}) as gate:
        shown = await page(gate, "/rules")
        assert "pay if argument.amount > 1000" in shown
        assert "drop if from_script is true and role is x<b>" in shown
        assert "<b>" not in (await (await operator(gate)).text("/rules")).partition("from_script")[2][:60]


@virtual_time
async def test_secret_in_a_condition_is_hidden_on_pages() -> None:
    rules = [{"match": "pay", "when": {"argument.key": "${CUSTOMER}"}, "action": "deny"}]
    secret = {"CUSTOMER": "hunter2-hunter2"}
    async with Gateway(configured(*rules), {"a": server(tool("pay"))}, env=secret) as gate:
        await (await gate.caller("2025")).tools()
        for path in ("/rules", "/tool?server=a&tool=pay"):
            assert "argument.key is [hidden]" in await page(gate, path)


async def explained(gate: Gateway, scope: str = "default") -> dict[str, tuple[bool, str]]:
    found: Explained = await explain_scope(gate.life.app.loaded, scope, NO_REQUEST, connect=True)
    return {row.tool: (row.seen, row.detail) for row in found.rows if row.tool}


@virtual_time
async def test_explanation_of_a_scope_names_conditions_and_what_remains() -> None:
    rules: list[dict[str, Any]] = [
        {"match": "drop", "when": {"risk": "destructive", "scope": "default"}, "action": "deny", "reason": "no"},
        {"match": "read", "when": {"scope": "other"}, "action": "deny"},
        {"match": "pay", "when": {"role": "intern"}, "action": "deny"},
        HELD,
    ]
    upstream = server(tool("pay"), tool("drop", destructiveHint=True), tool("read", readOnlyHint=True))
    config = configured(*rules, **MONEY, tokens=[token("ann", "intern")])
    async with Gateway(config, {"a": upstream}) as gate:
        rows = await explained(gate)
        assert rows["drop"] == (False, "no because risk is destructive and scope is default")
        assert rows["read"] == (True, "")
        shown, detail = rows["pay"]
        assert shown
        assert "if role is intern, otherwise" in detail
        assert "if argument.amount > 1000, otherwise forward (defaults)" in detail
