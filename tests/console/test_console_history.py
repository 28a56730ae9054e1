"""Finding out in the console what happened: ended calls stay listed, denials name their rule, and every page links on."""

from __future__ import annotations

import hashlib
import html
import re
from collections import deque
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from tests.console.test_console_inbox import AGENT
from tests.console.test_console_pages import HOSTILE, Person, form_token, known, operator
from tests.console.test_console_routes_and_streams import TASKS, TOKENS, bearer
from tests.store.call_records import add_counts
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate import clock
from taskgate.core.history.counts import Counted, Dimension, step_of
from taskgate.core.history.row import CallOutcome
from taskgate.core.sampling.spending import Estimate
from taskgate.core.settings.providers import SpendLimits
from taskgate.store.operation import Flush

CONFIG: dict[str, Any] = {
    **TOKENS,
    "governance": {
        "rules": [
            {"match": "drop", "action": "deny", "reason": "dropping is forbidden"},
            {"match": "wipe", "action": "approve"},
        ]
    },
    "tasks": {"execute_on": "approval"},
}


def shop() -> Upstream:
    made = Upstream("2025")

    @made.tool("look", description="Look at a shelf.", annotations={"readOnlyHint": True})
    async def look(call: Call) -> str:
        return "seen"

    @made.tool("fail")
    async def fail(call: Call) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "no such shelf"}], "isError": True}

    @made.tool("wait")
    async def wait(call: Call) -> str:
        await call.sleep(20)
        return "waited"

    @made.tool("ask")
    async def ask(call: Call) -> str:
        schema = {"type": "object", "properties": {}}
        return str(await call.ask("elicitation/create", {"message": "Which one?", "requestedSchema": schema}))

    @made.tool("drop")
    async def drop(call: Call) -> str:
        return "dropped"

    @made.tool("wipe", annotations={"destructiveHint": True})
    async def wipe(call: Call) -> str:
        return "wiped"

    return made


async def a_morning(gate: Gateway) -> dict[str, str]:
    """Calls of every kind by two callers; ids of their tasks."""
    made: dict[str, str] = {}
    for name in ("agent", "other"):
        caller = await gate.caller("2025", token=f"{name}-token-0123456789abcdef", capabilities=TASKS)
        for _ in range(3):
            await caller.call("shop__look", {"at": name})
        await caller.call("shop__fail", {})
        await caller.call("shop__drop", {})
        made[name] = (await caller.call("shop__wait", {"for": name}, task={"ttl": 60_000})).result["task"]["taskId"]
    await gate.advance(40)
    return made


@virtual_time
async def test_ended_tasks_are_found_after_their_results_are_gone() -> None:
    async with Gateway(CONFIG, {"shop": shop()}) as gate:
        made = await a_morning(gate)
        await gate.advance(900)
        assert (await gate.operator("GET", "/api/v1/tasks")).json()["tasks"] == [], "nothing of them is stored any more"
        boss, agent = await operator(gate), await known(gate, "agent")
        listed = await boss.text("/tasks")
        assert all(f'href="/tasks/{task}"' in listed for task in made.values())
        page = await boss.text(f"/tasks/{made['agent']}")
        assert 'class="state completed"' in page
        assert 'href="/caller?name=agent"' in page
        assert 'href="/tool?server=shop&amp;tool=wait"' in page
        assert "working 20 s" in page
        assert made["other"] not in await agent.text("/tasks"), "a caller sees its own calls only"
        await agent.text(f"/tasks/{made['other']}", 404)
        await agent.text(f"/tasks/{made['agent']}")


@virtual_time
async def test_denial_is_found_by_tool_caller_and_time_with_its_rule() -> None:
    async with Gateway(CONFIG, {"shop": shop()}) as gate:
        await a_morning(gate)
        boss = await operator(gate)
        listed = await boss.text("/tasks?state=denied&tool=drop&caller=agent&since=1h")
        (address,) = re.findall(r'href="(/tasks/hr_[0-9a-f]+)"', listed)
        assert re.search(r"policy_denied · dropping is forbidden · [^<]*drop", listed), "the list names the rule, too"
        page = await boss.text(address)
        assert "drop" in page
        assert "nothing was sent" in page
        assert re.search(r'<dt>Rule</dt><dd><a href="/rules">[^<]*drop', page)
        assert "other" not in re.findall(r"<tbody>.*?</tbody>", listed, re.DOTALL)[0]
        for query in ("tool=look&state=denied", "caller=ann", "until=1h", "state=cancelled"):
            assert "No matching tasks" in await boss.text(f"/tasks?{query}")
        for query in ("state=nothing", "since=ever", f"after={quote(HOSTILE)}"):
            assert 'class="note bad"' in await boss.text(f"/tasks?{query}")
        own = await (await known(gate, "agent")).text("/tasks?caller=other")
        assert "No matching tasks" in own


@virtual_time
async def test_overview_counts_calls_by_outcome_and_links_to_them() -> None:
    async with Gateway(CONFIG, {"shop": shop()}) as gate:
        await a_morning(gate)
        boss = await operator(gate)
        total = (await gate.operator("GET", "/api/v1/overview")).json()["total"]
        assert total["outcomes"] == {"ok": 8, "tool_error": 2, "denied": 2}
        for name in ("hour", "day", "week", quote(HOSTILE)):
            page = await boss.text(f"/overview?range={name}")
            assert "12 calls" in page
            assert "33.3%" in page, "four of twelve calls ended badly"
        page = await boss.text("/overview")
        drawn = [html.unescape(title) for title in re.findall(r"<title>([^<]*)</title>", page) if " ok" in title]
        assert sum(int(number) for title in drawn for number in re.findall(r"(\d+) tool error", title)) == 2
        found = 0
        for address in set(re.findall(r'<a href="(/tasks\?since=[^"]*)" tabindex', page)):
            listed = await boss.text(html.unescape(address))
            found += len(re.findall(r'<tr id="row-', listed))
        assert found == 12, "the columns of the chart lead to exactly the calls that it counts"
        own = (await gate.http("GET", "/api/v1/overview", headers={"authorization": f"Bearer {AGENT}"}).done()).json()
        assert own["total"]["calls"] == 6
        assert own["servers"] == []


@virtual_time
async def test_pages_of_callers_tools_and_servers_show_use_and_failures() -> None:
    async with Gateway(CONFIG, {"shop": shop()}) as gate:
        await a_morning(gate)
        boss, agent = await operator(gate), await known(gate, "agent")
        caller = await boss.text("/caller?name=agent")
        assert 'href="/tool?server=shop&amp;tool=look"' in caller
        assert 'class="state tool_error"' in caller
        tool = await boss.text("/tool?server=shop&tool=look")
        assert "Look at a shelf." in tool
        assert '<span class="risk reads_only">' in tool
        assert 'href="/caller?name=other"' in tool
        assert "Latency, distribution" in tool
        ruled = await boss.text("/tool?server=shop&tool=drop")
        assert "dropping is forbidden" in ruled
        server = await boss.text("/servers/shop")
        assert 'href="/caller?name=agent"' in server
        for path in ("/callers", "/callers?sort=-bad&range=day", "/tools", "/tools?sort=name&page=9"):
            assert 'scope="row"' in await boss.text(path)
        for path in (
            f"/caller?name={quote(HOSTILE)}",
            f"/tool?server=x&tool={quote(HOSTILE)}",
            "/tool?server=gone&tool=a/b",
        ):
            page = await boss.text(path)
            assert "<script>alert" not in page
            assert "\u202e" not in page
        for path in ("/callers", "/caller?name=other", "/tools", "/tool?server=shop&tool=look"):
            await agent.text(path, 403)


@virtual_time
async def test_totals_of_every_range_have_percentiles() -> None:
    async with Gateway(CONFIG, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", token=AGENT)
        for _ in range(3):
            await caller.call("shop__wait", {})
        for _ in range(5):
            await caller.call("shop__look", {})
        await caller.call("shop__drop", {})
        await gate.advance(40)
        boss = await operator(gate)
        for period in ("hour", "day", "week"):
            for sort in ("", "&sort=-p99", "&sort=p50"):
                page = await boss.text(f"/tools?range={period}{sort}")
                (waited,) = re.findall(r">wait</a>.*?</tr>", page)
                assert re.findall(r'<td class="n(?: opt)?">([\d.]+) s</td>', waited) == ["19.5", "21.9"], (
                    period,
                    sort,
                    waited,
                )
                (denied,) = re.findall(r">drop</a>.*?</tr>", page)
                assert " s</td>" not in denied
            sorted_page = await boss.text(f"/tools?range={period}&sort=-p99")
            order = re.findall(r'">(\w+)</a> <span class="dim small">on shop', sorted_page)
            assert order == ["wait", "look", "drop"], "the slowest first, those without a value last"
            (shown,) = (await gate.operator("GET", f"/api/v1/overview?range={period}")).json()["servers"]
            assert shown["p99_ms"] > 15_000
        for since in ("1h", "24h", "7d", "3650d"):
            rows = (await gate.operator("GET", f"/api/v1/history/totals?by=tool&since={since}")).json()
            assert {row["name"]: row["p50_ms"] and round(row["p50_ms"] / 1000) for row in rows} == {
                "shop/wait": 19, "shop/look": 0, "shop/drop": None
            }  # fmt: skip


@virtual_time
async def test_selected_tasks_are_cancelled_together() -> None:
    async with Gateway(CONFIG, {"shop": shop()}) as gate:
        ids = []
        for name in ("agent", "other"):
            caller = await gate.caller("2025", token=f"{name}-token-0123456789abcdef", capabilities=TASKS)
            ids.append((await caller.call("shop__wait", {}, task={"ttl": 600_000})).result["task"]["taskId"])
        await gate.advance(1)
        agent = await known(gate, "agent")
        page = await agent.text("/tasks")
        sent = "&".join([f"id={one}" for one in (*ids, "tg_gone")] + [f"form_token={quote(form_token(page))}"])
        headers = {"content-type": "application/x-www-form-urlencoded", "cookie": agent.cookie}
        done = await gate.http("POST", "/tasks/cancel", sent.encode(), headers).done()
        assert done.status == 303
        assert "1 task cancelled. 2 had ended" in await agent.text(done.headers["location"])
        states = {row["id"]: row["state"] for row in (await gate.operator("GET", "/api/v1/tasks")).json()["tasks"]}
        assert (states[ids[0]], states[ids[1]]) == ("cancelled", "running"), "a caller cancels its own tasks only"


@virtual_time
async def test_chosen_columns_are_kept() -> None:
    async with Gateway(CONFIG, {"shop": shop()}) as gate:
        await a_morning(gate)
        boss = await operator(gate)
        assert ">Client</a></th>" not in await boss.text("/tasks")
        chosen = await boss.get(f"/tasks?columns=1&column=client&column=state&column={quote(HOSTILE)}")
        cookie = chosen.headers["set-cookie"].split(";")[0]
        assert "HttpOnly" in chosen.headers["set-cookie"]
        later = await Person(gate, f"{boss.cookie}; {cookie}").text("/tasks")
        assert ">Client</a></th>" in later
        assert ">Caller</a></th>" not in later


@virtual_time
async def test_ended_calls_are_sorted_by_any_column() -> None:
    async with Gateway(CONFIG, {"shop": shop()}) as gate:
        await a_morning(gate)
        boss = await operator(gate)

        async def tools(query: str) -> list[str]:
            page = await boss.text(f"/tasks?{query}")
            return re.findall(r'<tr id="row-.*?<a href="/tasks/[^"]*">([^<]*)</a>', page, re.DOTALL)

        assert (await tools("sort=-took"))[:2] == ["wait", "wait"]
        assert (await tools("sort=took"))[-4:-2] == ["wait", "wait"], "denials have no duration and are last"
        names = await tools("sort=tool")
        assert names == sorted(names)
        assert len(names) == 12
        assert set(await tools("sort=-tool&state=bad")) == {"fail", "drop"}, "the filter is kept"
        page = await boss.text("/tasks?sort=-took&state=bad")
        assert 'aria-sort="descending"><a href="/tasks?state=bad&amp;sort=took"' in page
        assert await tools("sort=nothing") == await tools("")
        for key in ("state", "caller", "scope", "client", "why", "approved_by", "size", "when"):
            assert len(await tools(f"sort={key}")) == len(await tools(f"sort=-{key}")) == 12
        caller = await gate.caller("2025", token=AGENT)
        for _ in range(60):
            await caller.call("shop__look", {})
            await gate.advance(1)
        await gate.advance(15)
        page = await boss.text("/tasks?sort=-took&caller=agent")
        (following,) = re.findall(r'rel="next" href="([^"]*)"', page)
        assert dict(parse_qsl(urlsplit(html.unescape(following)).query)) == {
            "sort": "-took", "caller": "agent", "page": "2"
        }, "the next page keeps filter and order"  # fmt: skip


@virtual_time
async def test_task_page_lists_the_same_call_at_other_times_and_its_trace() -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with Gateway(CONFIG, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        ids = []
        for shelf in ("a", "a", "b"):
            meta = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
            reply = await caller.request(
                "tools/call",
                {"name": "shop__wait", "arguments": {"for": shelf}, "task": {"ttl": 600_000}, "_meta": meta},
            )
            ids.append(reply.result["task"]["taskId"])
            await gate.advance(30)
        boss, other = await operator(gate), await known(gate, "other")
        for _ in range(2):
            page = await boss.text(f"/tasks/{ids[0]}")
            assert f"<dt>Trace</dt><dd><code>{trace}</code>" in page
            assert f'href="/tasks/{ids[1]}"' in page
            assert f'href="/tasks/{ids[2]}"' not in page, "other arguments"
            assert f'<tr id="row-{ids[0]}"' not in page, "the call itself"
            await gate.advance(1_000)  # the second time the task itself is gone
        await other.text(f"/tasks/{ids[0]}", 404)


@virtual_time
async def test_trace_id_is_a_link_to_the_tracing_system() -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    link = f"https://traces.example/trace/{trace}?from=console&x=1"
    traced = {**CONFIG, "telemetry": {"trace_url": "https://traces.example/trace/{trace_id}?from=console&x=1"}}
    async with Gateway(traced, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        ids = []
        for meta in (
            {"traceparent": f"00-{trace}-b7ad6b7169203331-01"},
            {"traceparent": f'00-{"x" * 27}"><b>-b7-01'},
            {},
        ):
            params = {"name": "shop__wait", "arguments": {}, "task": {"ttl": 600_000}, "_meta": meta}
            ids.append((await caller.request("tools/call", params)).result["task"]["taskId"])
        await gate.advance(30)
        boss = await operator(gate)
        for _ in range(2):
            page = await boss.text(f"/tasks/{ids[0]}")
            assert f'<a href="{html.escape(link)}" rel="noopener noreferrer"><code>{trace}</code></a>' in page
            for without in ids[1:]:
                assert "traces.example" not in await boss.text(f"/tasks/{without}")
            await gate.advance(1_000)  # the second time the task itself is gone
        assert (await gate.operator("GET", f"/api/v1/history/{ids[0]}")).json()["trace_url"] == link
        assert (await gate.operator("GET", f"/api/v1/history/{ids[1]}")).json()["trace_url"] is None


@virtual_time
async def test_overview_shows_how_long_calls_waited_for_approval() -> None:
    async with Gateway(CONFIG, {"shop": shop()}) as gate:
        boss = await operator(gate)
        assert "Wait for approval" not in await boss.text("/overview")
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        await caller.call("shop__wipe", {}, task={"ttl": 600_000})
        await gate.advance(60)
        (approval,) = (await gate.operator("GET", "/api/v1/approvals")).json()
        ann = {"authorization": "Bearer ann-token-0123456789abcdef", "content-type": "application/json"}
        done = await gate.http("POST", f"/api/v1/approvals/{approval['id']}/approve", b"{}", ann).done()
        assert done.status == 200, done.text
        await gate.advance(15)
        waited = (await gate.operator("GET", "/api/v1/overview")).json()["waited"]
        assert waited["calls"] == 1
        assert 50_000 < waited["p50_ms"] < 80_000
        assert "Wait for approval" in await boss.text("/overview")
        assert "Wait for answers" not in await boss.text("/overview")


@virtual_time
async def test_overview_shows_how_long_questions_waited_for_an_answer() -> None:
    async with Gateway(CONFIG, {"shop": shop()}) as gate:
        boss = await operator(gate)
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        ids = []
        for number in range(2):
            reply = await caller.call("shop__ask", {"number": number}, task={"ttl": 600_000})
            ids.append(reply.result["task"]["taskId"])
        await gate.advance(60)
        assert (await gate.operator("GET", "/api/v1/overview")).json()["answered"]["calls"] == 0
        assert "Wait for answers" not in await boss.text("/overview")
        questions = (await gate.operator("GET", "/api/v1/questions")).json()
        (first,) = [question["request_id"] for question in questions if question["task_id"] == ids[0]]
        done = await gate.operator("POST", f"/api/v1/questions/{first}", {"content": {}})
        assert done.status == 200, done.text
        await gate.advance(15)
        answered = (await gate.operator("GET", "/api/v1/overview")).json()["answered"]
        assert (answered["calls"], answered["outcomes"]) == (1, {"ok": 1})
        assert 50_000 < answered["p50_ms"] < 80_000
        await gate.operator("POST", f"/api/v1/tasks/{ids[1]}/cancel", {})
        await gate.advance(15)
        data = (await gate.operator("GET", "/api/v1/overview")).json()
        assert data["answered"]["outcomes"] == {"ok": 1, "cancelled": 1}
        assert data["waited"]["calls"] == 0, "no approval was needed"
        assert "Wait for answers" in await boss.text("/overview")


@virtual_time
async def test_budget_that_is_nearly_spent_needs_attention_of_its_tenant_and_of_operators() -> None:
    def has(name: str, tenant: str, roles: list[str]) -> dict[str, Any]:
        digest = hashlib.sha256(f"{name}-token-0123456789abcdef".encode()).hexdigest()
        return {"id": name, "sha256": digest, "tenant": tenant, "roles": roles}

    tokens = [has("chief", "acme", ["operator"]), has("stranger", "globex", ["operator"])]
    async with Gateway({**CONFIG, "tokens": [*CONFIG["tokens"], *tokens]}, {"shop": shop()}) as gate:
        ledger = gate.life.app.gateway.console.decisions.models._of_tenants
        ledger.adopt(SpendLimits(tokens_per_hour=1_000))
        ledger.reserve("acme", Estimate(900, 0, 0.0), clock.monotonic())
        ledger.reserve("globex", Estimate(100, 0, 0.0), clock.monotonic())

        async def budgets(headers: dict[str, str]) -> list[str]:
            found = (await gate.http("GET", "/api/v1/overview", headers=headers).done()).json()["attention"]
            return [item["text"] for item in found if item["kind"] == "budget"]

        for person in (gate.operator_token, "chief-token-0123456789abcdef"):
            (text,) = await budgets({"authorization": f"Bearer {person}"})
            assert "acme" in text
            assert "90" in text
        assert await budgets(bearer("stranger")) == []
        page = await (await operator(gate)).text("/overview")
        assert '<li class="budget"><a href="/usage">' in page


@virtual_time
async def test_task_is_run_again_as_the_person_who_clicks() -> None:
    config = {**CONFIG, "approval": {"default": {"redact_fields": ["pin"]}}}
    async with Gateway(config, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        ids = [
            (await caller.call("shop__wait", arguments, task={"ttl": 600_000})).result["task"]["taskId"]
            for arguments in ({"for": "x"}, {"pin": "1234"})
        ]
        await gate.advance(30)
        boss = await operator(gate)
        page = await boss.text(f"/tasks/{ids[0]}")
        assert f'action="/tasks/{ids[0]}/rerun"' in page
        again = await boss.post(f"/tasks/{ids[0]}/rerun", {"scope": "default"}, form_token(page))
        assert again.status == 303
        new = again.headers["location"].removeprefix("/tasks/")
        assert new not in ids
        shown = (await gate.operator("GET", f"/api/v1/tasks/{new}")).json()
        assert (shown["principal"], shown["rerun_of"], shown["arguments"]) == ("operator", ids[0], {"for": "x"})
        assert f'href="/tasks/{ids[0]}"' in await boss.text(f"/tasks/{new}")
        redacted = await boss.text(f"/tasks/{ids[1]}")
        assert "/rerun" not in redacted
        refused = await boss.post(f"/tasks/{ids[1]}/rerun", {"scope": "default"}, form_token(redacted))
        assert refused.status == 409
        other = await known(gate, "other")
        foreign = await other.post(
            f"/tasks/{ids[0]}/rerun", {"scope": "default"}, form_token(await other.text("/tasks"))
        )
        assert foreign.status == 404


LINK = re.compile(r'<a\b[^>]*?\bhref="([^"]*)"')
MAX_PAGES = 400


async def dead_links(person: Person, start: str) -> tuple[list[str], int]:
    """Links of all pages that can be reached, as (address, status) where it is not 200, and the number of pages."""
    seen, waiting, dead = {start}, deque([start]), []
    while waiting and len(seen) <= MAX_PAGES:
        path = waiting.popleft()
        reply = await person.get(path)
        if reply.status != 200:
            dead.append(f"{path}: {reply.status}")
            continue
        if not reply.headers["content-type"].startswith("text/html"):
            continue
        for found in LINK.findall(reply.body.decode()):
            address = html.unescape(found).partition("#")[0]
            if address.startswith("/") and address not in seen and address != "/":
                seen.add(address)
                waiting.append(address)
    return dead, len(seen)


@virtual_time
async def test_no_page_has_a_dead_link() -> None:
    odd = shop()

    @odd.tool("a/b?c=d&é")
    async def oddly(call: Call) -> str:
        return "odd"

    servers = {"shop": shop(), "empty": Upstream("2025"), "odd": odd}
    async with Gateway(CONFIG, servers) as gate:
        await a_morning(gate)
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        await caller.call("shop__wipe", {}, task={"ttl": 600_000})
        await caller.call("odd__a/b?c=d&é", {})
        await gate.advance(15)
        for person in (await operator(gate), await known(gate, "agent"), await known(gate, "ann")):
            dead, pages = await dead_links(person, "/overview")
            assert dead == []
            assert pages > 10


@virtual_time
async def test_overview_has_percentiles_of_every_server_in_every_range() -> None:
    async with Gateway({}, {"files": Upstream("2025")}) as gate:
        store = gate.life.app.store
        now = store.now_ms()
        for number in range(30):
            for hours_ago in (0, 20, 100):
                at_ms = now - hours_ago * 3_600_000
                step = step_of(1_000.0 * (number + 1))
                add_counts(
                    store, at_ms, [Counted(Dimension.SERVER, f"server-{number}", "", CallOutcome.OK, step, 90 - number)]
                )
        await store.do(Flush())
        for name, calls in (("hour", 1), ("day", 2), ("week", 3)):
            servers = (await gate.operator("GET", f"/api/v1/overview?range={name}")).json()["servers"]
            assert [row["name"] for row in servers] == [f"server-{number}" for number in range(30)], name
            for number, row in enumerate(servers):
                assert row["calls"] == calls * (90 - number)
                for percentile in (row["p50_ms"], row["p99_ms"]):
                    assert percentile == pytest.approx(1_000 * (number + 1), rel=0.6), (name, number)


@virtual_time
async def test_audit_rows_of_a_task_lead_to_its_page_while_there_is_one() -> None:
    async with Gateway({**CONFIG, "history": {"keep": "30m"}}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        made = (await caller.call("shop__look", {}, task={"ttl": 60_000})).result["task"]["taskId"]
        boss = await operator(gate)
        link = f'<p>Rows of <a href="/tasks/{made}">'
        assert f'href="/audit?text={made}"' in await boss.text("/audit")
        assert link in await boss.text(f"/audit?text={made}"), "stored"
        await gate.advance(1_000)
        assert link in await boss.text(f"/audit?text={made}"), "in history"
        assert "no longer stored" in await boss.text(f"/tasks/{made}")
        await gate.advance(2_400)
        page = await boss.text(f"/audit?text={made}")
        assert link not in page
        assert "task_created" in page, "rows of the audit log outlive the task and its row of history"
