"""What people see of scripts: the plan on an approval, the calls in console and API, and the report of a failure."""

from __future__ import annotations

from typing import Any

from tests.console.test_console_pages import operator
from tests.console.test_console_routes_and_streams import TOKENS
from tests.scripts.test_running_scripts import ON, ended, shop, started, structured
from tests.virtual_time import Gateway, virtual_time

APPROVED = {"match": "taskgate:run_script", "action": "approve"}
PLANNED = """name = "shop__" + "read"
await shop.read(n=1)
await shop.buy(n=2)
await call_tool(name, n=3)
await call_tool("shop__none")
await ask("Which?")
"""


def rules(*rows: dict[str, str]) -> dict[str, Any]:
    return {**ON, "governance": {"rules": list(rows)}}


async def waiting(gate: Gateway) -> dict[str, Any]:
    [row] = (await gate.operator("GET", "/api/v1/approvals")).json()
    detail: dict[str, Any] = (await gate.operator("GET", f"/api/v1/approvals/{row['id']}")).json()
    assert row["plan_summary"] == detail["plan_summary"]
    return detail


async def task_of(gate: Gateway, task_id: str, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = (await gate.operator("GET", f"/api/v1/tasks/{task_id}{query}")).json()
    return found


@virtual_time
async def test_approver_of_a_script_sees_its_tools_and_the_decision_for_each() -> None:
    config = rules(APPROVED, {"match": "buy", "from": "script", "action": "deny"})
    async with Gateway(config, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        await started(gate, caller, PLANNED)
        detail = await waiting(gate)
        assert detail["plan"] == {
            "tools": [
                {"tool": "shop__read", "meets": "forward", "lines": [2]},
                {"tool": "shop__buy", "meets": "denied", "lines": [3]},
            ],
            "tools_left_out": 0,
            "unknown_tools_on_lines": [5],
            "computed_names_on_lines": [4],
            "questions_on_lines": [6],
        }
        boss = await operator(gate)
        page = await boss.text(f"/approvals/{detail['id']}")
        plan = page.partition('aria-label="Plan"')[2].partition("</table>")[0]
        assert plan.index("shop__read") < plan.index("shop__buy")
        assert '<span class="state denied">' in plan
        for path in ("/inbox", "/approvals"):
            assert detail["plan_summary"] in await boss.text(path)


@virtual_time
async def test_approver_of_a_call_sees_the_script_and_the_line_that_made_it() -> None:
    async with Gateway(rules({"match": "buy", "action": "approve"}), {"shop": shop()}) as gate:
        task = await started(gate, await gate.caller("2025"), "await shop.read(n=1)\nawait shop.buy(n=2)")
        await gate.advance(5)
        detail = await waiting(gate)
        [row] = (await gate.operator("GET", "/api/v1/approvals")).json()
        assert detail["from_script"] == row["from_script"] == {"task_id": task, "line": 2}
        boss = await operator(gate)
        for path in (f"/approvals/{detail['id']}", "/inbox"):
            page = await boss.text(path)
            assert f'href="/tasks/{task}"' in page
            assert ", line 2" in page
        assert f"script {task}, line 2" in await boss.text("/approvals")


@virtual_time
async def test_other_approvals_have_no_plan() -> None:
    async with Gateway(rules({"match": "buy", "action": "approve"}), {"shop": shop()}) as gate:
        caller = await gate.caller("2025", capabilities={"tasks": {}})
        await caller.call("shop__buy", {"n": 1}, task={"ttl": 60_000})
        detail = await waiting(gate)
        assert detail["from_script"] is None
        assert (detail["plan"], detail["plan_summary"], detail["script_calls"], detail["script"]) == (
            None,
            None,
            None,
            "",
        )


@virtual_time
async def test_calls_of_an_approved_script_are_listed_with_the_approval_and_the_task() -> None:
    async with Gateway(rules(APPROVED), {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, "await shop.read(n=1)\nawait shop.buy(n=2)")
        detail = await waiting(gate)
        assert detail["script_calls"]["calls"] == []
        await gate.operator("POST", f"/api/v1/approvals/{detail['id']}/approve", {})
        assert structured(await ended(caller, task))["result"] == "bought 2"
        [row] = (await gate.operator("GET", "/api/v1/approvals?all=1")).json()
        approved = (await gate.operator("GET", f"/api/v1/approvals/{row['id']}")).json()
        calls = approved["script_calls"]["calls"]
        assert [(call["tool"], call["line"], call["state"], call["executed"]) for call in calls] == [
            ("shop__read", 1, "completed", "yes"),
            ("shop__buy", 2, "completed", "yes"),
        ]
        assert (await task_of(gate, task))["script_calls"]["calls"] == calls
        boss = await operator(gate)
        for path in (f"/approvals/{row['id']}", f"/tasks/{task}"):
            page = await boss.text(path)
            assert all(f'href="/tasks/{call["task_id"]}"' in page for call in calls)


@virtual_time
async def test_call_of_a_script_links_to_its_script() -> None:
    async with Gateway(rules(), {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, "x = 1\nawait shop.buy(n=x)")
        await ended(caller, task)
        [call] = (await task_of(gate, task))["script_calls"]["calls"]
        child = await task_of(gate, call["task_id"])
        assert (child["parent"], child["script_line"], child["script_calls"]) == (task, 2, None)
        assert f'href="/tasks/{task}"' in await (await operator(gate)).text(f"/tasks/{call['task_id']}")
        spans = (await gate.operator("GET", "/api/v1/waterfall")).json()
        [made] = [span for span in spans if span["script"] == task]
        assert (made["task"], made["line"], made["name"]) == (call["task_id"], 2, "buy")
        [asked] = [span for span in spans if span["kind"] == "request" and span["method"] == "tools/call"]
        assert asked["task"] == task


@virtual_time
async def test_waiting_script_shows_what_it_waits_for() -> None:
    async with Gateway(rules({"match": "buy", "action": "approve"}), {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        code = "await asyncio.gather(shop.buy(n=1), sleep(5000))"
        task = await started(gate, caller, code)
        await gate.advance(5)
        calls = (await task_of(gate, task))["script_calls"]["calls"]
        assert [(call["tool"], call["state"], call["line"]) for call in calls] == [
            ("shop__buy", "awaiting_approval", 1),
            ("sleep", "waiting", 1),
        ]
        assert calls[1]["waits_until"] is not None
        page = await (await operator(gate)).text(f"/tasks/{task}")
        assert "sleep" in page.partition('id="calls"')[2].partition("</table>")[0]


@virtual_time
async def test_calls_of_a_large_script_are_listed_in_pages() -> None:
    async with Gateway(rules(), {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        code = "for n in range(6):\n    await asyncio.gather(*[shop.read(n=n) for _ in range(40)])"
        task = await started(gate, caller, code)
        await ended(caller, task)
        first = (await task_of(gate, task))["script_calls"]
        found, following = [call["task_id"] for call in first["calls"]], first["next"]
        assert len(found) == 100
        page = await (await operator(gate)).text(f"/tasks/{task}")
        assert f"?calls_after={following}#calls" in page
        while following is not None:
            more = (await task_of(gate, task, f"?calls_after={following}"))["script_calls"]
            found += [call["task_id"] for call in more["calls"]]
            following = more["next"]
        assert len(set(found)) == len(found) == 240
        assert (await gate.operator("GET", f"/api/v1/tasks/{task}?calls_after=x")).status == 400
        await (await operator(gate)).text(f"/tasks/{task}?calls_after=-1", 400)


@virtual_time
async def test_calls_of_a_chain_of_scripts_are_one_history_in_pages() -> None:
    async with Gateway(rules(), {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        chain: list[str] = []
        for first, last in ((0, 60), (60, 100), (100, 130)):
            calls = "await asyncio.gather(*[shop.read(n=n + m) for m in range(10)])"
            code = f"for n in range({first}, {last}, 10):\n    {calls}\n1 / 0"
            chain.append(await started(gate, caller, code, **({"resume_of": chain[-1]} if chain else {})))
            await ended(caller, chain[-1])
        tree = (await task_of(gate, chain[-1]))["script_calls"]
        makers = [call["script"] for call in tree["calls"]]
        assert makers == [chain[0]] * 60 + [chain[1]] * 40
        assert tree["next"] == f"{chain[1]}:{tree['calls'][-1]['number']}"
        following = (await task_of(gate, chain[-1], f"?calls_after={tree['next']}"))["script_calls"]
        assert [call["script"] for call in following["calls"]] == [chain[2]] * 30
        assert following["next"] is None
        page = await (await operator(gate)).text(f"/tasks/{chain[-1]}")
        assert f'href="/tasks/{chain[0]}">by an earlier script' in page
        first_of_own = following["calls"][0]["number"]
        own = (await task_of(gate, chain[-1], f"?calls_after={first_of_own}"))["script_calls"]
        assert len(own["calls"]) == 29


@virtual_time
async def test_refused_calls_are_on_the_page_of_their_number_only() -> None:
    config = rules({"match": "buy", "action": "deny"})
    async with Gateway(config, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        code = """async def both(n):
    await shop.read(n=n)
    try:
        await shop.buy(n=n)
    except Exception:
        pass
for n in range(4):
    await asyncio.gather(*[both(n) for _ in range(20)])
for n in range(40):
    await shop.read(n=n)
"""
        task = await started(gate, caller, code)
        await ended(caller, task)
        first = (await task_of(gate, task))["script_calls"]
        second = (await task_of(gate, task, f"?calls_after={first['next']}"))["script_calls"]
        assert second["next"] is None
        numbers = [call["number"] for page in (first, second) for call in page["calls"]]
        assert numbers == sorted(set(numbers))
        assert len(numbers) == 4 * 20 * 2 + 40
        assert first["calls"][-1]["number"] <= first["next"] < second["calls"][0]["number"]


FAILS = """await shop.read(n=1)
await shop.buy(n=2)
{}["<img src=x onerror=alert(1)>"]
"""


@virtual_time
async def test_report_of_a_failed_script_is_on_its_page() -> None:
    async with Gateway(rules(), {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, FAILS)
        await ended(caller, task)
        page = await (await operator(gate)).text(f"/tasks/{task}")
        report = page.partition('id="report"')[2].partition("<h2>Arguments</h2>")[0]
        assert "on line 3" in report
        for heading in ("Executed (2)", "Not executed (0)", "Outcome unknown (0)"):
            assert heading in report
        assert f"--resume-of {task}" in report
        assert "<img" not in page
        completed = await started(gate, caller, "1")
        await ended(caller, completed)
        assert "--resume-of" not in await (await operator(gate)).text(f"/tasks/{completed}")


@virtual_time
async def test_only_its_caller_and_operators_see_the_calls_of_a_script() -> None:
    async with Gateway({**rules(), **TOKENS}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef")
        task = await started(gate, caller, "await shop.read(n=1)")
        await ended(caller, task)
        for name, status in (("agent", 200), ("other", 404)):
            headers = {"authorization": f"Bearer {name}-token-0123456789abcdef"}
            reply = await gate.http("GET", f"/api/v1/tasks/{task}", None, headers).done()
            assert reply.status == status


@virtual_time
async def test_timeline_of_a_script_shows_when_it_waited_and_when_it_ran() -> None:
    async with Gateway(rules(APPROVED), {"shop": shop(slow_s=20)}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, "await shop.buy(n=1)\n{}['x']")
        await gate.advance(40)
        assert [phase["kind"] for phase in (await task_of(gate, task))["phases"]] == ["waiting"]
        await gate.operator("POST", f"/api/v1/approvals/{(await waiting(gate))['id']}/approve", {})
        await ended(caller, task)
        found = await task_of(gate, task)
        assert [phase["kind"] for phase in found["phases"]] == ["waiting", "working"]
        assert all("\n" not in step["detail"] for step in found["timeline"])


REFUSED = """for n in range(COUNT):
    try:
        await shop.buy(n=n)
    except Exception:
        pass
await shop.read(n=1)
{}["missing"]
"""


@virtual_time
async def test_refused_calls_are_listed_as_not_executed() -> None:
    store = shop()
    async with Gateway(rules({"match": "buy", "action": "deny"}), {"shop": store}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, REFUSED.replace("COUNT", "2"))
        content = structured(await ended(caller, task))["calls"]
        assert [(call["tool"], call["line"], call["error_type"]) for call in content["not_executed"]] == [
            ("shop__buy", 3, "policy_denied")
        ] * 2
        assert [call["tool"] for call in content["executed"]] == ["shop__read"]
        calls = (await task_of(gate, task))["script_calls"]["calls"]
        assert [(call["tool"], call["state"], call["executed"], call["line"]) for call in calls] == [
            ("shop__buy", "refused", "no", 3),
            ("shop__buy", "refused", "no", 3),
            ("shop__read", "completed", "yes", 6),
        ]
        page = await (await operator(gate)).text(f"/tasks/{task}")
        assert '<span class="state refused">' in page
        assert "Not executed (2)" in page
        assert store.count("buy") == 0


@virtual_time
async def test_refused_calls_beyond_the_kept_ones_are_counted() -> None:
    async with Gateway(rules({"match": "buy", "action": "deny"}), {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        failed = structured(await ended(caller, await started(gate, caller, REFUSED.replace("COUNT", "103"))))
        assert (len(failed["calls"]["not_executed"]), failed["refused_not_listed"]) == (100, 3)
        fine = REFUSED.replace("COUNT", "103").replace('{}["missing"]', "1")
        done = structured(await ended(caller, await started(gate, caller, fine)))
        assert done["calls"] == {"executed": 1, "not_executed": 103, "unknown": 0}


@virtual_time
async def test_approver_sees_which_lines_changed_since_the_last_approved_script() -> None:
    first = "x = 1\nawait shop.read(n=1)\nx\n"
    second = "x = '<b id=hostile>\u202e'\nawait shop.read(n=1)\nawait shop.buy(n=2)\nx\n"
    async with Gateway(rules(APPROVED), {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        task = await started(gate, caller, first)
        detail = await waiting(gate)
        assert detail["script_changes"] is None
        await gate.operator("POST", f"/api/v1/approvals/{detail['id']}/approve", {})
        await ended(caller, task)
        await started(gate, caller, second, inputs={"customer": 7})
        detail = await waiting(gate)
        lines = detail["script_changes"]["lines"]
        assert [(line["kind"], line["before"], line["after"]) for line in lines] == [
            ("removed", 1, None),
            ("added", None, 1),
            ("same", 2, 2),
            ("added", None, 3),
            ("same", 3, 4),
        ]
        assert lines[1]["text"] == "x = '<b id=hostile>\\u202e'"
        page = await (await operator(gate)).text(f"/approvals/{detail['id']}")
        changed = page.partition('aria-label="Changed lines"')[2].partition("</table>")[0]
        assert changed.count('class="added"') == 2
        assert "await shop.buy(n=2)" in changed
        assert "<b id=hostile>" not in page
        fields = page.partition('aria-label="Differences"')[2].partition("</table>")[0]
        assert "customer" in fields
        assert "shop.buy" not in fields
