"""Rules, rehearsals and usage in the console and its API: what they show, to whom, and with hostile texts in them."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from tests.console.test_console_routes_and_streams import TASKS, TOKENS, bearer
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.core.usage import UsageRow
from taskgate.dashboard.usage_metrics import as_metrics

HOSTILE = "<script>alert(1)</script>\u202e"
RULES = [{"match": "drop*", "action": "deny"}, {"match": "pay", "action": "approve", "reason": HOSTILE}]
CONFIG: dict[str, Any] = {
    **TOKENS,
    "profile": "production",
    "governance": {"rules": RULES, "record": {"redact": ["token"]}},
}


def bank() -> Upstream:
    server = Upstream("2025")

    @server.tool("read")
    async def read(_call: Call) -> str:
        return "5"

    @server.tool("drop")
    async def drop(_call: Call) -> str:
        return "gone"

    @server.tool("wipe", annotations={"destructiveHint": True})
    async def wipe(_call: Call) -> str:
        return "gone"

    return server


async def called(gate: Gateway) -> None:
    agent = await gate.caller("2025", token="agent-token-0123456789abcdef")
    await agent.call("bank__read", {"note": HOSTILE, "token": "s3cret"})
    await agent.call("bank__drop", {})
    await agent.call("bank__wipe", {})
    other = await gate.caller("2025", token="other-token-0123456789abcdef")
    await other.call("bank__read", {})
    await gate.advance(15)


async def login(gate: Gateway) -> str:
    """The cookie of the operator who logged in."""
    link = (await gate.operator("POST", "/api/v1/login-links", {})).json()["url"]
    code = re.search(r"code=(\S+)", link)
    assert code is not None
    anonymous = await gate.http("GET", "/login").done()
    before = anonymous.headers["set-cookie"].split(";")[0] if "set-cookie" in anonymous.headers else ""
    token = re.search(r'name="form_token" value="([^"]*)"', anonymous.body.decode())
    assert token is not None
    logged = await posted(gate, "/login", {"code": code[1], "form_token": token[1]}, before)
    return str(logged.headers["set-cookie"].split(";")[0])


async def guard_of(gate: Gateway, path: str, cookie: str) -> str:
    own = await gate.http("GET", path, headers={"cookie": cookie}).done()
    guard = re.search(r'name="form_token" value="([^"]*)"', own.body.decode())
    assert guard is not None
    return guard[1]


async def page(gate: Gateway, path: str, form: dict[str, str] | None = None) -> tuple[int, str]:
    """As the operator who logged in."""
    cookie = await login(gate)
    if form is None:
        reply = await gate.http("GET", path, headers={"cookie": cookie}).done()
    else:
        reply = await posted(gate, path, {"form_token": await guard_of(gate, path, cookie), **form}, cookie)
    return reply.status, reply.body.decode()


async def posted(gate: Gateway, path: str, form: dict[str, str], cookie: str) -> Any:
    from urllib.parse import urlencode

    headers = {"content-type": "application/x-www-form-urlencoded", "cookie": cookie}
    return await gate.http("POST", path, urlencode(form).encode(), headers).done()


@virtual_time
async def test_the_rules_page_shows_which_calls_each_rule_matched() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        await called(gate)
        found = (await gate.operator("GET", "/api/v1/rules")).json()
        assert found["recording"] is True
        assert [(row["match"], row["action"], row["calls"]) for row in found["rules"]] == [
            ("drop*", "deny", 1),
            ("pay", "approve", 0),
            ("everything else", "forward", 3),
        ]


@virtual_time
async def test_a_rehearsal_reports_changes_and_applies_nothing() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        await called(gate)
        changed = {"governance": 'rules: [{match: "read", action: deny}]', "since": "1d"}
        found = (await gate.operator("POST", "/api/v1/rules/rehearse", changed)).json()
        assert (found["calls"], found["changed"], found["undecided"]) == (4, 3, 0)
        assert {(row["tool"], row["before"], row["after"], row["calls"]) for row in found["tools"]} == {
            ("read", "forward", "deny", 2),
            ("drop", "deny", "forward", 1),
        }
        assert "s3cret" not in str(found)
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef")
        assert "5" in (await caller.call("bank__read", {})).text


LEVELS = "abcdefghi"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{below}'] * 9)}]\n" for below, name in pairwise(LEVELS)
)
"""A few hundred characters that denote 9 to the power of 9 values."""


@virtual_time
async def test_an_invalid_rehearsal_is_refused_with_the_reason() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        for body, text in (
            ({"governance": "rules: [{match: x}]"}, "action"),
            ({"governance": "rules: ["}, "YAML"),
            ({"governance": "rules:\tx"}, "must be a list"),
            ({"governance": "rules: !x y"}, "must be a list"),
            ({"governance": "{rules: [{match: x, action: approve, approval: nobody}]}"}, "nobody"),
            ({"governance": "[" * 5000}, "nested deeper than 64 levels"),
            ({"governance": BOMB}, "aliases count in full"),
            ({"governance": "{}", "since": "tomorrow"}, "since"),
            ({"governance": 5}, "YAML text"),
            ({}, "YAML text"),
            ({"governance": "{}", "more": 1}, "YAML text"),
        ):
            reply = await gate.operator("POST", "/api/v1/rules/rehearse", body)
            assert reply.status == 400, body
            assert text in reply.json()["error"]


@virtual_time
async def test_a_caller_without_roles_sees_only_its_own_usage_and_no_rules() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        await called(gate)
        mine = (await gate.http("GET", "/api/v1/usage", headers=bearer("other")).done()).json()
        assert [(row["principal"], row["tool"], row["calls"]) for row in mine] == [("other", "read", 1)]
        all_persons = (await gate.operator("GET", "/api/v1/usage?by=principal")).json()
        assert {(row["principal"], row["calls"]) for row in all_persons} == {("agent", 2), ("other", 1)}
        for path in ("/api/v1/rules", "/api/v1/rules/recorded", "/api/v1/rules/suggestions"):
            assert (await gate.http("GET", path, headers=bearer("other")).done()).status == 403
        reply = await gate.http("POST", "/api/v1/rules/rehearse", {"governance": "{}"}, bearer("ann")).done()
        assert reply.status == 403


@virtual_time
async def test_rows_of_usage_link_to_caller_server_and_tool() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        await called(gate)
        cookie = await login(gate)
        text = (await gate.http("GET", "/usage", headers={"cookie": cookie}).done()).body.decode()
        rows = text.partition("<tbody>")[2].partition("</tbody>")[0]
        links = {address.replace("&amp;", "&") for address in re.findall(r'href="([^"]*)"', rows)}
        assert {"/caller?name=agent", "/servers/bank", "/tool?server=bank&tool=read"} <= links
        for address in links:
            assert (await gate.http("GET", address, headers={"cookie": cookie}).done()).status == 200
        assert "Caller, server, tool</a>" in text


@virtual_time
async def test_usage_as_csv_and_invalid_parameters() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        await called(gate)
        table = await gate.operator("GET", "/api/v1/usage?by=tool&format=csv")
        assert table.headers["content-type"].startswith("text/csv")
        lines = table.body.decode().splitlines()
        head = "day,principal,tenant,server,tool,calls,errors,seconds,bytes_in,bytes_out,cost"
        assert lines[0] == '"' + head.replace(",", '","') + '"'
        assert lines[1].startswith('"","","","","read","2","0",')
        metrics = await gate.operator("GET", "/api/v1/usage?format=prometheus")
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        mine = (await gate.http("GET", "/api/v1/usage?format=prometheus", headers=bearer("other")).done()).body
        line = b'taskgate_used_calls_total{principal="%s",tenant="",server="bank",tool="%s"} 1'
        for who, tool in ((b"agent", b"wipe"), (b"other", b"read")):
            assert line % (who, tool) in metrics.body
            assert (line % (who, tool) in mine) == (who == b"other")
        tenants = await gate.operator("GET", "/api/v1/usage?format=prometheus&by=tenant")
        assert b'taskgate_used_calls_total{tenant=""} 3' in tenants.body
        for query in ("days=0", "days=x", "days=9999", "by=nothing", "format=prometheus&by=nothing"):
            assert (await gate.operator("GET", f"/api/v1/usage?{query}")).status == 400


@virtual_time
async def test_a_rule_is_suggested_for_risky_calls_without_approval() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        await called(gate)
        (found,) = (await gate.operator("GET", "/api/v1/rules/suggestions")).json()
        assert (found["ask"], found["tool"], found["rule"]) == (
            "more",
            "wipe",
            '- {match: "wipe", server: "bank", action: approve}',
        )


@virtual_time
async def test_hostile_texts_are_escaped_and_pages_stay_small() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        await called(gate)
        form = {"governance": 'rules: [{match: "read", action: deny, reason: "<b>x</b>"}]', "since": "1d"}
        for path, given in (("/rules", None), ("/usage", None), ("/rules", form)):
            status, text = await page(gate, path, given)
            assert status == 200
            assert "<script>alert" not in text
            assert "\u202e" not in text
            assert "s3cret" not in text
            assert len(text.encode()) <= 60_000
        assert 'data-changed="3" data-undecided="0"' in text
        assert "&lt;script&gt;" in text
        status, text = await page(gate, "/rules", {"governance": "rules: [", "since": "1d"})
        assert (status, "not valid YAML" in text) == (200, True)


@virtual_time
async def test_a_forged_form_changes_nothing_and_is_not_rehearsed() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        reply = await posted(gate, "/rules", {"governance": "{}", "form_token": "forged"}, "taskgate_session=x")
        assert reply.status == 403


POLICY = "permit(principal, action, resource) when { context.arguments has amount && context.arguments.amount < 10 };"
CALLS = [
    (who, f"{server}__{tool}", arguments)
    for who in ("agent", "other")
    for server, tool, arguments in (
        ("bank", "read", {"amount": 1}),
        ("bank", "drop", {"amount": 50}),
        ("bank", "wipe", {}),
        ("desk", "read", {"amount": 50}),
        ("desk", "wipe", {"amount": 2}),
    )
]


def any_rules(number: int) -> list[dict[str, str]]:
    chosen = random.Random(number)
    rules = []
    for _ in range(chosen.randint(1, 4)):
        rule = {"match": chosen.choice(["read", "drop", "wi*", "*"])}
        rule["action"] = chosen.choice(["forward", "approve", "deny", "policy"])
        rules.append(rule | ({"server": chosen.choice(["bank", "desk"])} if chosen.random() < 0.5 else {}))
    return rules


async def really(gate: Gateway) -> Counter[tuple[str, str, str]]:
    """What happens to the calls by the rules in force, by server and tool."""
    found: Counter[tuple[str, str, str]] = Counter()
    callers = {
        who: await gate.caller("2025", token=f"{who}-token-0123456789abcdef", capabilities=TASKS)
        for who in dict.fromkeys(who for who, _, _ in CALLS)
    }
    after = len((await gate.operator("GET", "/api/v1/approvals")).json())
    for who, name, arguments in CALLS:
        reply = await callers[who].call(name, arguments, task={"ttl": 60_000})
        before, after = after, len((await gate.operator("GET", "/api/v1/approvals")).json())
        held = after > before
        server, tool = name.split("__")
        refused = "error" in reply.last or reply.result.get("isError")
        found[server, tool, "approve" if held else "deny" if refused else "forward"] += 1
    return found


async def rehearsal(gate: Gateway, rules: list[dict[str, str]]) -> Counter[tuple[str, str, str]]:
    """What would have happened to the recorded calls, all of which went through, by server and tool."""
    body = {"governance": json.dumps({"rules": rules}), "since": "1d"}
    found = (await gate.operator("POST", "/api/v1/rules/rehearse", body)).json()
    assert (found["calls"], found["undecided"]) == (len(CALLS), 0)
    after = Counter({(row["server"], row["tool"], row["after"]): row["calls"] for row in found["tools"]})
    changed = {key[:2] for key in after}
    after.update((*pair, "forward") for _, name, _ in CALLS if (pair := tuple(name.split("__"))) not in changed)  # type: ignore[misc]
    return after


@virtual_time
async def test_a_rehearsal_agrees_with_real_decisions() -> None:
    """For any rules, a rehearsal of recorded calls has the decisions of the same calls made under these rules."""
    base: dict[str, Any] = {
        **TOKENS,
        "cedar": {"policies": ["policy.cedar"]},
        "limits": {"pending_approvals_per_caller": 500},
    }
    config = {**base, "governance": {"record": {}}}
    gate = Gateway(config, {"bank": bank(), "desk": bank()})
    (gate.folder / "policy.cedar").write_text(POLICY)
    async with gate:
        assert set(await really(gate)) == {(*name.split("__"), "forward") for _, name, _ in CALLS}
        await gate.advance(15)
        trials = [any_rules(number) for number in range(24)]
        rehearsed = [await rehearsal(gate, rules) for rules in trials]
        for rules, expected in zip(trials, rehearsed, strict=True):
            await gate.reload({**base, "governance": {"rules": rules}})
            assert await really(gate) == expected, rules
        assert {key[2] for expected in rehearsed for key in expected} == {"forward", "approve", "deny"}


def test_usage_as_metrics_has_a_bounded_number_of_rows_and_escapes_names() -> None:
    rows = [UsageRow("2026-01-01", f"p{n}", "s", "t", calls=10 - n, bytes_in=1, cost=0.5) for n in range(4)]
    rows.append(UsageRow("2026-01-01", 'a"b\\c\nd', "s", "t", calls=100, seconds=1.5, bytes_out=7))
    text = as_metrics(rows, ("principal", "server"), maximum=3)
    assert text.splitlines()[:2] == [
        "# HELP taskgate_used_calls Calls that reached a server.",
        "# TYPE taskgate_used_calls counter",
    ]
    lines = [line for line in text.splitlines() if line.startswith("taskgate_used_calls_total")]
    assert lines == [
        'taskgate_used_calls_total{principal="a\\"b\\\\c\\nd",server="s"} 100',
        'taskgate_used_calls_total{principal="p0",server="s"} 10',
        'taskgate_used_calls_total{principal="p1",server="s"} 9',
        'taskgate_used_calls_total{principal="(others)",server="(others)"} 15',
    ]
    assert 'taskgate_used_sampling_cost_total{principal="(others)",server="(others)"} 1.0' in text
    assert 'taskgate_used_bytes_total{principal="a\\"b\\\\c\\nd",server="s",direction="out"} 7' in text
    assert text.count("# TYPE taskgate_used_bytes counter") == 1
    assert as_metrics([], ("tenant",)).count("_total") == 0
    with pytest.raises(ValueError, match="by is one or more"):
        as_metrics(rows, ("colour",))
