"""Audit, system, scopes and waterfall in the console: what they show, to whom, and with hostile texts in them."""

from __future__ import annotations

import html
import json
import re
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import msgspec
from tests.console.test_console_routes_and_streams import TASKS, TOKENS, bank_server, bearer
from tests.console.test_console_rules_and_usage import HOSTILE, bank, guard_of, login, page, posted
from tests.virtual_time import Call, Gateway, virtual_time

from taskgate.core.audit.chain import AuditEntry, Row
from taskgate.core.timestamps import iso
from taskgate.dashboard.audit_scan import newest_first
from taskgate.store.operation import Flush
from taskgate.store.operations.audit import AuditRows, AuditTime, AuditTimes, ChainEnd, ChainEnds, RecordAudit

CONFIG: dict[str, Any] = {
    **TOKENS,
    "profile": "production",
    "governance": {"rules": [{"match": "drop", "action": "deny"}]},
    "scopes": {"default": {"default_servers": ["*"]}, "less": {"default_servers": ["bank"], "tool_denylist": ["read"]}},
}


async def called(gate: Gateway) -> None:
    caller = await gate.caller("2025", token="agent-token-0123456789abcdef")
    for name in ("bank__read", "bank__drop", f"bank__{HOSTILE}"):
        await caller.call(name, {})
    await gate.advance(3)


@virtual_time
async def test_the_log_is_searched_from_the_newest_row_back_page_by_page() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        await called(gate)
        found = (await gate.operator("GET", "/api/v1/audit?event=call_denied")).json()
        assert [(row["name"], row["principal"]) for row in found["rows"]] == [("drop", "agent")]
        assert found["next"] is None
        numbers: list[int] = []
        after = ""
        while True:
            some = (await gate.operator("GET", f"/api/v1/audit?limit=2{after}")).json()
            numbers += [row["number"] for row in some["rows"]]
            if some["next"] is None:
                break
            after = f"&before={some['next']}"
        head = (await gate.operator("GET", "/api/v1/audit/chain")).json()
        assert numbers == list(range(head["rows"], 0, -1))
        assert head["whole"] is True
        for query in ("before=x", "before=1:2:other", "since=ever", "limit=0", f"before={'9' * 20}"):
            assert (await gate.operator("GET", f"/api/v1/audit?{query}")).status == 400
        status, shown = await page(gate, "/audit?caller=%00")
        assert (status, "\0" in shown) == (400, False)


@virtual_time
async def test_pages_ignore_parameters_that_they_do_not_have() -> None:
    """Addresses of pages are kept as bookmarks, and the API refuses such parameters."""
    async with Gateway(TOKENS, {}) as gate:
        for path in ("/tasks", "/audit", "/overview", "/waterfall", "/usage", "/servers", "/callers", "/approvals"):
            status, shown = await page(gate, f"{path}?serverr=a")
            assert status == 200, path
            assert "serverr" not in shown, "not in the links to the JSON either"


FILTERED = {
    "/overview": "range=week",
    "/tools": "range=day&text=a&sort=-calls",
    "/tool?server=bank&tool=read": "range=day",
    "/callers": "range=day&text=a",
    "/caller?name=agent": "range=day",
    "/find": "text=a",
    "/tasks": "state=bad&server=bank&tool=drop&caller=agent&scope=default&since=1d&until=0s&text=a&kind=denial",
    "/tasks?state=open": "server=bank&tool=drop&caller=agent&scope=default&since=1d&until=0s&text=a",
    "/usage": "days=7&by=server",
    "/audit": "event=call_denied&caller=agent&server=bank&tool=drop&decision=deny&text=a&since=1d&until=0s",
    "/waterfall": "server=bank&caller=agent&name=read&state=ok&minutes=5&show=all&from=1&to=2",
    "/approvals": "all=1",
    "/try": "tool=bank__read&scope=default",
}


@virtual_time
async def test_links_of_pages_to_the_json_have_only_parameters_that_it_knows() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        await called(gate)
        followed = set()
        for path, query in FILTERED.items():
            for address in (path, f"{path}{'&' if '?' in path else '?'}{query}"):
                status, shown = await page(gate, address)
                assert status == 200, address
                for link in {html.unescape(one) for one in re.findall(r'(?:href|data-copy)="(/api/[^"]*)"', shown)}:
                    reply = await gate.operator("GET", link)
                    assert reply.status == 200, (address, link, reply.body)
                    followed.add(link.partition("?")[0])
        assert followed >= {
            f"/api/v1/{name}" for name in ("history", "history/export", "tasks", "audit/export", "usage")
        }


MARKS = 2_500
"""More rows than one search reads."""


@virtual_time
async def test_rows_before_a_time_are_found_however_many_newer_ones_there_are() -> None:
    async with Gateway(TOKENS, {}) as gate:
        store = gate.life.app.store
        begin = (store.now_ms() // 1000 + 60) * 1000
        for number in range(MARKS):
            store.defer(RecordAudit(AuditEntry(begin + number * 1000, f"mark {number}")))
        await store.do(Flush())
        await gate.advance(MARKS + 120)

        def at(number: int) -> str:
            return quote(iso(begin + number * 1000))

        async def found(query: str) -> tuple[list[str], Any]:
            reply = (await gate.operator("GET", f"/api/v1/audit?{query}")).json()
            return [row["event"] for row in reply["rows"]], reply["next"]

        for until in (0, 1, 7, 700, MARKS - 1):
            rows, _ = await found(f"until={at(until)}&limit=2")
            assert rows[: min(until, 2)] == [f"mark {number}" for number in (until - 1, until - 2) if number >= 0], (
                until
            )
        rows, following = await found(f"since={at(20)}&until={at(30)}&limit=6")
        assert rows == [f"mark {number}" for number in range(29, 23, -1)]
        rest, last = await found(f"since={at(20)}&until={at(30)}&limit=6&before={following}")
        assert (rest, last) == ([f"mark {number}" for number in range(23, 19, -1)], None)
        for wrong in (f"since={at(30)}&until={at(30)}", f"since={at(31)}&until={at(30)}", "until=ever"):
            reply = await gate.operator("GET", f"/api/v1/audit?{wrong}")
            assert reply.status == 400
        _, shown = await page(gate, f"/audit?event=mark+5&until={at(30)}")
        assert len(re.findall(r"<summary>\d+</summary>", shown)) == 1
        assert f'name="until" value="{iso(begin + 30 * 1000)}"' in shown
        exports = [html.unescape(one) for one in re.findall(r'href="(/api/v1/audit/export[^"]*)"', shown)]
        exported = await gate.operator("GET", exports[0])
        assert [json.loads(line)["entry"]["event"] for line in exported.body.splitlines()] == ["mark 5"]
        assert "x-next-after" not in exported.headers, "no later row matches"
        first = (await gate.operator("GET", f"/api/v1/audit/export?text=mark&until={at(3)}")).body.splitlines()
        assert [json.loads(line)["entry"]["event"] for line in first] == ["mark 0", "mark 1", "mark 2"]
        whole = await gate.operator("GET", f"/api/v1/audit/export?limit=10&until={at(30)}")
        assert whole.headers["x-next-after"] == "10"


class _CountedLog:
    """One chain with a row a second, which counts what is read of it."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.rows_read = self.times_read = 0

    async def ask(self, query: Any) -> Any:
        match query:
            case ChainEnds():
                return (ChainEnd("", 0, self._rows, self._rows * 1000),)
            case AuditRows(after=after, limit=limit):
                numbers = range(after + 1, min(after + limit, self._rows) + 1)
                self.rows_read += len(numbers)
                return tuple(Row(number, "", "", AuditEntry(number * 1000, "x")) for number in numbers)
            case AuditTimes(after=after, limit=limit):
                numbers = range(after + 1, min(after + limit, self._rows) + 1)
                self.times_read += len(numbers)
                return tuple(AuditTime(number, "", number * 1000) for number in numbers)


async def test_rows_after_the_time_are_not_read() -> None:
    log = _CountedLog(1_000_000)
    async with aclosing(newest_first(log, None, 0, 5_001_000)) as rows:  # type: ignore[arg-type]
        numbers = [row.number async for _, row in rows]
    assert numbers == list(range(5_000, 4_000, -1))
    assert log.times_read <= 20
    assert log.rows_read <= 1_200


@virtual_time
async def test_pages_of_long_rows_stay_small_and_lose_no_row() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        store = gate.life.app.store
        for number in range(120):
            long = f'"<{number}>' * (1 if number % 3 else 400)
            entry = AuditEntry(0, "call_denied", principal="agent", server="bank", name="drop", reason=long, rule=long)
            store.defer(RecordAudit(msgspec.structs.replace(entry, arguments_digest="sha256:" + "d" * 64, kind="tool")))
        await store.do(Flush())
        head = (await gate.operator("GET", "/api/v1/audit/chain")).json()["rows"]
        numbers: list[int] = []
        path, sizes = "/audit", []
        while path:
            _, shown = await page(gate, path)
            sizes.append(len(shown.encode()))
            numbers += map(int, re.findall(r"<summary>(\d+)</summary>", shown))
            older = re.search(r'<a class="button" href="(/audit\?[^"]*)">Older rows', shown)
            path = html.unescape(older[1]) if older is not None else ""
        assert [number for number in numbers if number <= head] == list(range(head, 0, -1)), "a login adds a row"
        assert max(sizes) < 60_000
        assert "<100>" not in shown


@virtual_time
async def test_exports_can_be_verified_and_are_one_line_a_row() -> None:
    from taskgate.core.audit.chain import ChainIntact, from_export, verify

    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        await called(gate)
        lines = (await gate.operator("GET", "/api/v1/audit/export")).body.splitlines()
        assert isinstance(verify(from_export(json.loads(line)) for line in lines), ChainIntact)
        cef = (await gate.operator("GET", "/api/v1/audit/export?format=cef")).body.decode().split("\n")
        assert any("CEF are deprecated" in line.event for line in gate.log)
        assert len(cef) == len(lines) + 1
        assert all(line.startswith("CEF:0|Taskgate|") for line in cef[:-1])
        assert (await gate.operator("GET", "/api/v1/audit/export?format=xml")).status == 400


@virtual_time
async def test_export_keeps_the_filter_of_the_page_and_the_page_suggests_names() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        await called(gate)
        await gate.advance(15)
        _, shown = await page(gate, "/audit?event=call_denied&tool=drop")
        (number,) = re.findall(r"<summary>(\d+)</summary>", shown)
        whole = shown.partition('<tr class="whole"><td colspan="6">')[2].partition("</tr>")[0]
        assert f'aria-label="Row {number}"' in whole
        assert "event: call_denied" in whole, "every field of the row is below it, over the width of the table"
        exports = [html.unescape(one) for one in re.findall(r'href="(/api/v1/audit/export[^"]*)"', shown)]
        assert len(exports) == 2
        lines = (await gate.operator("GET", exports[0])).body.splitlines()
        assert [json.loads(line)["entry"]["name"] for line in lines] == ["drop"]
        assert (await gate.operator("GET", exports[0].replace("drop", "nothing"))).body == b""
        _, every = await page(gate, "/audit")
        lists = dict(re.findall(r'<datalist id="names-(\w+)">(.*?)</datalist>', every, re.DOTALL))
        assert 'value="bank"' in lists["server"]
        assert 'value="agent"' in lists["caller"]
        assert 'value="call_denied"' in lists["event"]
        assert "<script>" not in "".join(lists.values())


@virtual_time
async def test_a_scope_page_lists_tools_and_the_reasons_of_exclusions() -> None:
    async with Gateway(CONFIG, {"bank": bank(), "other": bank()}) as gate:
        await called(gate)
        less = (await gate.operator("GET", "/api/v1/scopes/less/tools")).json()
        assert [tool["name"] for tool in less["tools"]] == ["bank__echo", "bank__wipe"]
        assert ("bank:drop", "rule_denied") in {(line["what"], line["why"]) for line in less["left_out"]}
        assert {line["what"] for line in less["left_out"]} == {"bank:drop", "bank:read", "other"}
        whole = (await gate.operator("GET", "/api/v1/scopes/default/tools")).json()
        assert whole["bytes"] > less["bytes"] > 50
        assert less["tokens"] == less["bytes"] // 4
        assert (await gate.operator("GET", "/api/v1/scopes/gone/tools")).status == 404


@virtual_time
async def test_page_of_a_removed_scope_leads_to_its_past_calls() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        past = await gate.http("GET", "/scopes/gone%26x", headers={"cookie": await login(gate)}).done()
        assert (past.status, past.headers["location"]) == (303, "/tasks?scope=gone%26x")
        assert (await page(gate, "/tasks?scope=gone%26x"))[0] == 200
        assert (await gate.operator("GET", "/api/v1/scopes/gone")).status == 404


@virtual_time
async def test_the_system_page_has_no_secrets_and_reload_requires_permission() -> None:
    secret = CONFIG | {
        "approval": {
            "ops": {"channels": [{"type": "webhook", "url": "https://u:s3cret@example.test/x", "secret": "s3cret" * 4}]}
        }
    }
    async with Gateway(secret, {"bank": bank()}) as gate:
        row = (await gate.operator("GET", "/api/v1/system")).json()
        assert {limit["limit"] for limit in row["limits"]} == {"calls_in_flight", "sessions"}
        _, text = await page(gate, "/system")
        assert "s3cret" not in text
        assert CONFIG["tokens"][0]["sha256"] not in text
        assert "[hidden]" in text
        assert (await gate.http("POST", "/api/v1/system/reload", {}, bearer("ann")).done()).status == 403
        assert (await gate.operator("POST", "/api/v1/system/reload", {})).json() == {"reloaded": True}
        gate.config_file.write_text("{nonsense: [")
        cookie = await login(gate)
        guard = await guard_of(gate, "/system", cookie)
        reply = await posted(gate, "/system/reload", {"form_token": guard}, cookie)
        assert reply.status == 200
        assert "note bad" in reply.body.decode()
        refused = await gate.operator("POST", "/api/v1/system/reload", {})
        assert refused.status == 409
        rows = (await gate.operator("GET", "/api/v1/audit?event=configuration_reloaded")).json()["rows"]
        assert [row["principal"] for row in rows] == ["operator"] * 3


@virtual_time
async def test_hostile_texts_are_escaped_and_pages_stay_small() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        await called(gate)
        for path in (
            "/audit",
            "/audit?text=%3Cscript%3Ealert(1)%3C/script%3E",
            "/system",
            "/scopes",
            "/scopes/less",
            "/waterfall",
            "/waterfall?server=bank&minutes=5",
        ):
            status, text = await page(gate, path)
            assert status == 200, path
            assert "<script>alert" not in text
            assert "\u202e" not in text
            assert len(text.encode()) <= 60_000
        for path, expected in (("/waterfall?minutes=x", 400), ("/audit?before=x", 400)):
            assert (await page(gate, path))[0] == expected


@virtual_time
async def test_the_waterfall_shows_only_what_fits() -> None:
    async with Gateway(CONFIG, {"bank": bank(), "other": bank()}) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef")
        await caller.call("bank__read", {})
        await caller.call("other__wipe", {})
        _, everything = await page(gate, "/waterfall")
        assert "bank: read" in everything
        _, text = await page(gate, "/waterfall?server=other")
        assert "other: wipe" in text
        assert "bank: read" not in text
        rows = (await gate.operator("GET", "/api/v1/waterfall?name=wipe")).json()
        first = next(row for row in rows if row["parent"] is None)
        assert {row["name"] for row in rows} == {"wipe", "other__wipe"}
        for query in (f"trace={first['id']}", f"from={first['start_ms'] - 0.1}&to={first['start_ms'] + 0.1}&name=wipe"):
            _, text = await page(gate, f"/waterfall?{query}")
            assert ("other: wipe" in text, "bank: read" in text, 'id="reset-zoom"' in text) == (True, False, True)
            assert (await gate.operator("GET", f"/api/v1/waterfall?{query}")).json() == rows
        for bad in ("from=1", "from=x&to=2", "from=3&to=2", "from=nan&to=2", "limit=0"):
            assert (await gate.operator("GET", f"/api/v1/waterfall?{bad}")).status == 400
        assert "No requests in this period" in (await page(gate, "/waterfall?from=1&to=2"))[1]
        await gate.advance(600)
        _, text = await page(gate, "/waterfall?minutes=5&name=read")
        assert "bank: read" not in text


@virtual_time
async def test_an_open_page_is_refused_after_its_persons_role_ends() -> None:
    async with Gateway(CONFIG, {"bank": bank()}) as gate:
        assert (await gate.http("GET", "/api/v1/audit", headers=bearer("ann")).done()).status == 200
        tokens = [{**token, "roles": []} for token in CONFIG["tokens"]]
        await gate.reload(CONFIG | {"tokens": tokens})
        for path in ("/audit", "/servers", "/rules", "/system"):
            assert (await gate.http("GET", f"/api/v1{path}", headers=bearer("ann")).done()).status == 403


@virtual_time
async def test_waterfall_begins_with_calls_and_hides_polls() -> None:
    async with Gateway(CONFIG, {"bank": bank_server()}) as gate:
        caller = await gate.caller("2025", token="agent-token-0123456789abcdef", capabilities=TASKS)
        made = (await caller.call("bank__pay", {}, task={"ttl": 60_000})).result["task"]["taskId"]
        for _ in range(3):
            await caller.request("tasks/get", {"taskId": made})
        await caller.request("tools/list", {})
        _, calls = await page(gate, "/waterfall")
        assert "tasks/get" not in calls
        assert "tools/list" not in calls
        assert f'href="/tasks/{made}"' in calls, "a click opens the task"
        _, every = await page(gate, "/waterfall?show=all")
        assert every.count("request tasks/get") == 3
        shown = (await gate.operator("GET", "/api/v1/waterfall?show=calls")).json()
        assert {row["method"] for row in shown if row["kind"] == "request"} == {"tools/call"}
        assert (await gate.operator("GET", "/api/v1/waterfall?show=some")).status == 400


@virtual_time
async def test_tools_are_searched_by_name_and_description() -> None:
    bank = bank_server()

    @bank.tool("audit", description="Compare the ledger with the vault.")
    async def audit(call: Call) -> str:
        return "equal"

    async with Gateway(CONFIG, {"bank": bank}) as gate:
        for text, expected in (("LEDGER vault", ["bank__audit"]), ("bank pay", ["bank__pay"]), ("nothing", [])):
            _, shown = await page(gate, f"/try?text={quote(text)}")
            assert re.findall(r'href="/try[^"]*tool=([^"]*)"', shown) == expected
        assert "Show all" in shown
