"""What the gateway keeps of calls that have ended, who may find it, and what a failing store does to it."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from contextlib import closing
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from tests.console.test_console_pages import Person
from tests.store.call_records import add_counts, add_history
from tests.store.test_sqlite_disk import in_writer
from tests.virtual_time import Call, Failure, Gateway, Upstream, virtual_time
from tests.virtual_time.waiting import the_loop

from taskgate.core.history.counts import counted
from taskgate.core.history.filters import HistoryFilter
from taskgate.core.history.row import LONGEST_REASON, CallOutcome, HistoryRow, RowKind
from taskgate.gateway.governance import journal
from taskgate.store import batch_writer
from taskgate.store.operations.audit import AuditRows
from taskgate.store.operations.history_search import FindHistory
from taskgate.store.sqlite.store import SqliteStore

DAY_S = 86_400
GONE_S = 900
"""By then the result of a task with a ttl of a minute is deleted: `keep_result_ms` and an interval of the sweep are over."""
TOKEN = "{}-token-0123456789abcdef"
CONFIG: dict[str, Any] = {
    "tokens": [
        {
            "id": name,
            "sha256": hashlib.sha256(TOKEN.format(name).encode()).hexdigest(),
            "roles": roles,
            **({"tenant": tenant} if tenant else {}),
        }
        for name, roles, tenant in (
            ("ann", [], ""),
            ("bob", [], ""),
            ("sue", [], "acme"),
            ("olga", ["operator"], ""),
            ("chief", ["operator"], "acme"),
            ("root", ["admin"], ""),
        )
    ],
    "approval": {"ops": {"redact_fields": ["pin"]}},
    "governance": {"rules": [{"match": "remove", "action": "deny"}]},
}
TASKS: dict[str, Any] = {"tasks": {"requests": {"tools": {"call": {}}}}}


def files() -> Upstream:
    upstream = Upstream("both")

    @upstream.tool("read")
    async def read(call: Call) -> str:
        return "text"

    @upstream.tool("remove")
    async def remove(call: Call) -> str:
        return "removed"

    @upstream.tool("broken")
    async def broken(call: Call) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "no such file"}], "isError": True}

    @upstream.tool("cut")
    async def cut(call: Call) -> str:
        call.reply.cut_after(10)
        return "lost"

    @upstream.tool("refusing")
    async def refusing(call: Call) -> str:
        raise Failure(-32042, f"cannot use {call.arguments['what']} here")

    @upstream.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(3)
        return "done"

    return upstream


def whose(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKEN.format(name)}"}


async def page(gate: Gateway, name: str = "olga", **filters: Any) -> dict[str, Any]:
    reply = await gate.http("GET", f"/api/v1/history?{urlencode(filters)}", headers=whose(name)).done()
    assert reply.status == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def rows(gate: Gateway, name: str = "olga", **filters: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await page(gate, name, **filters))["rows"]
    return found


async def task_of(gate: Gateway, name: str, tool: str = "files__read", **arguments: Any) -> str:
    """A task that has ended."""
    caller = await gate.caller("2025", token=TOKEN.format(name), capabilities=TASKS)
    reply = await caller.call(tool, arguments, task={"ttl": 60_000})
    await gate.advance(5)
    task_id: str = reply.result["task"]["taskId"]
    return task_id


@virtual_time
async def test_every_way_to_end_is_distinguished() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        caller = await gate.caller("2025", token=TOKEN.format("ann"), client="agent")
        for tool in ("read", "broken", "cut", "remove", "slow", "invented"):
            await caller.call(f"files__{tool}", {})
        await gate.advance(3)
        found = {row["tool"]: row for row in await rows(gate)}
        outcomes = {tool: row["outcome"] for tool, row in found.items()}
        assert outcomes == {
            "read": "ok",
            "broken": "tool_error",
            "cut": "failed",
            "remove": "denied",
            "slow": "ok",
            "invented": "denied",
        }
        assert found["remove"]["rule"] != ""
        assert found["remove"]["error_type"] == "policy_denied"
        for refused in ("remove", "invented"):
            assert (found[refused]["client"], found[refused]["generation"]) == ("agent", "stateful")
        assert (found["read"]["client"], found["read"]["caller"], found["read"]["kind"]) == ("agent", "ann", "call")
        assert found["read"]["digest"].startswith("sha256:")
        assert found["slow"]["duration_ms"] >= 3_000
        assert {row["tool"] for row in await rows(gate, outcome="bad")} == {
            "broken",
            "cut",
            "remove",
            "invented",
        }


@virtual_time
async def test_tasks_are_found_after_their_results_are_gone() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        task_id = await task_of(gate, "ann", "files__broken")
        await gate.advance(GONE_S)
        assert (await gate.operator("GET", f"/api/v1/tasks/{task_id}")).status == 404
        shown = (await gate.operator("GET", f"/api/v1/history/{task_id}")).json()
        assert (shown["outcome"], shown["caller"], shown["content"]) == ("tool_error", "ann", None)
        assert (await rows(gate, text=task_id))[0]["id"] == task_id
        caller = await gate.caller("2025", token=TOKEN.format("ann"), capabilities=TASKS)
        reply = (await caller.request("tasks/get", {"taskId": task_id})).error["data"]
        assert (reply["error_type"], reply["outcome"], reply["executed"]) == ("result_expired", "tool_error", "yes")
        other = await gate.caller("2025", token=TOKEN.format("bob"), capabilities=TASKS)
        foreign = (await other.request("tasks/get", {"taskId": task_id})).error
        unknown = (await other.request("tasks/get", {"taskId": "tg_01HZZZZZZZZZZZZZZZZZZZZZZZ"})).error
        assert foreign["data"]["error_type"] == unknown["data"]["error_type"] == "unknown_task"
        assert foreign["message"] == unknown["message"]


@virtual_time
async def test_person_sees_their_own_calls_or_those_of_their_tenant() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        ids = {name: await task_of(gate, name) for name in ("ann", "bob", "sue")}
        for name, seen in {
            "ann": {"ann"},
            "sue": {"acme/sue"},
            "chief": {"acme/sue"},
            "olga": {"ann", "bob", "acme/sue"},
        }.items():
            assert {row["caller"] for row in await rows(gate, name)} == seen, name
        assert await rows(gate, "ann", caller="bob") == []
        assert await rows(gate, "chief", tenant="other") == []
        for name, status in {"ann": 200, "bob": 404, "chief": 404, "olga": 200}.items():
            path = f"/api/v1/history/{ids['ann']}"
            assert (await gate.http("GET", path, headers=whose(name)).done()).status == status, name
        await gate.advance(15)
        totals = await gate.http("GET", "/api/v1/history/totals?by=caller", headers=whose("chief")).done()
        assert [row["name"] for row in totals.json()] == ["acme/sue"]
        own = await gate.http("GET", "/api/v1/history/series?by=server&name=files", headers=whose("ann")).done()
        assert own.json()["total"]["calls"] == 0
        own = await gate.http("GET", "/api/v1/history/series", headers=whose("ann")).done()
        assert own.json()["total"]["calls"] == 1


@virtual_time
async def test_person_of_a_tenant_finds_its_callers_of_the_past_by_their_names_with_and_without_it() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        for name in ("bob", "sue"):
            await task_of(gate, name)
        await gate.advance(15)
        await gate.restart()
        for person, text, names in (
            ("chief", "su", ["acme/sue"]),
            ("chief", "acme/su", ["acme/sue"]),
            ("chief", "bo", []),
            ("olga", "bo", ["bob"]),
        ):
            reply = await gate.http("GET", f"/api/v1/find?text={text}", headers=whose(person)).done()
            assert [row["name"] for row in reply.json() if row["kind"] == "caller"] == names, (person, text)


@virtual_time
async def test_cursor_belongs_to_one_person_tenant_and_filter() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        for _ in range(3):
            await task_of(gate, "sue")
        first = await page(gate, "chief", limit=1)
        assert first["next"] is not None
        second = await page(gate, "chief", limit=1, after=first["next"])
        assert second["rows"][0]["id"] != first["rows"][0]["id"]

        async def status(name: str, **query: Any) -> int:
            reply = await gate.http("GET", f"/api/v1/history?{urlencode(query)}", headers=whose(name)).done()
            return reply.status

        assert await status("olga", limit=1, after=first["next"]) == 400
        assert await status("chief", limit=1, server="files", after=first["next"]) == 400
        assert await status("chief", after="1234") == 400
        assert await status("chief", after=first["next"][:-4] + "AAAA") == 400
        await gate.advance(3_700)
        assert await status("chief", limit=1, after=first["next"]) == 400, "an old cursor"


@virtual_time
async def test_equal_denials_are_summed_and_the_others_keep_their_rows() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        caller = await gate.caller("2025", token=TOKEN.format("ann"))
        for _ in range(50):
            await caller.call("files__remove", {})
        await gate.advance(2)
        assert sorted(row["count"] for row in await rows(gate, tool="remove")) == [1, 49]
        await caller.call("files__remove", {})
        await gate.advance(70)
        assert sorted(row["count"] for row in await rows(gate, tool="remove")) == [1, 50]


@virtual_time
async def test_successful_plain_calls_are_sampled_and_all_are_counted() -> None:
    config = {**CONFIG, "history": {"sample": 5}}
    async with Gateway(config, {"files": files()}) as gate:
        caller = await gate.caller("2025", token=TOKEN.format("ann"))
        for _ in range(40):
            await caller.call("files__read", {})
        for _ in range(3):
            await caller.call("files__broken", {})
        await gate.advance(15)
        assert len(await rows(gate, outcome="ok")) == 5
        assert len(await rows(gate, outcome="tool_error")) == 3
        series = (await gate.operator("GET", "/api/v1/history/series?since=1h&by=tool&name=files/read")).json()
        assert series["total"]["outcomes"] == {"ok": 40}
        assert len(series["buckets"]) <= 61
        total = (await gate.operator("GET", "/api/v1/history/series?since=1h")).json()["total"]
        assert (total["calls"], total["bad"]) == (43, 3)
        (server,) = (await gate.operator("GET", "/api/v1/history/totals?by=server")).json()
        assert (server["name"], server["calls"]) == ("files", 43)
        assert (await gate.operator("GET", "/api/v1/history/names?by=tool&begins=files/b")).json() == ["files/broken"]


@virtual_time
async def test_nothing_is_kept_with_keep_0() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        await task_of(gate, "ann")
        assert len(await rows(gate)) == 1
        await gate.reload({**CONFIG, "history": {"keep": "0"}})
        await gate.advance(2)
        await task_of(gate, "ann")
        await gate.advance(120)
        assert await rows(gate) == []


@virtual_time
async def test_rows_are_deleted_after_their_time() -> None:
    async with Gateway({**CONFIG, "history": {"keep": "20m"}}, {"files": files()}) as gate:
        await task_of(gate, "ann")
        await gate.advance(18 * 60)
        assert len(await rows(gate)) == 1
        await gate.advance(4 * 60)
        assert await rows(gate) == []


@virtual_time
async def test_clock_that_jumps_ahead_deletes_nothing_for_an_hour() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        await task_of(gate, "ann")
        await gate.advance(70)
        loop = the_loop()
        real = loop.wall()
        loop.set_wall(real + 30 * DAY_S)
        await gate.advance(300)
        assert len(await rows(gate)) == 1
        loop.set_wall(real + 300)
        await gate.advance(3_700)
        assert len(await rows(gate)) == 1


@virtual_time
async def test_failing_history_fails_no_call_and_the_gap_is_marked() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        path = gate.state / "taskgate.db"
        await task_of(gate, "ann")
        broken = sqlite3.connect(path)
        broken.execute("CREATE TRIGGER no_history BEFORE INSERT ON history BEGIN SELECT RAISE(ABORT, 'broken'); END")
        broken.commit()
        task_id = await task_of(gate, "ann")
        caller = await gate.caller("2025", token=TOKEN.format("ann"))
        assert (await caller.call("files__read", {})).text == "text"
        await gate.advance(3)
        assert (await gate.operator("GET", f"/api/v1/tasks/{task_id}")).json()["state"] == "completed"
        broken.execute("DROP TRIGGER no_history")
        broken.commit()
        broken.close()
        await gate.advance(3)
        (gap,) = await rows(gate, kind="gap")
        assert gap["count"] == 2
        assert gap["accepted_at"] <= gap["ended_at"]


@virtual_time
async def test_full_disk_fails_no_plain_call_and_leaves_a_row_or_a_gap() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        store = gate.life.app.store
        assert isinstance(store, SqliteStore)
        await task_of(gate, "ann")

        def pages(limit: int) -> None:
            store.engine.writer._connection.execute(f"PRAGMA max_page_count={limit}")

        await in_writer(store, lambda: pages(1))
        caller = await gate.caller("2025", token=TOKEN.format("ann"), capabilities=TASKS)
        for _ in range(40):
            assert (await caller.call("files__read", {"text": "x" * 1_000})).text == "text"
            assert (await caller.call("files__remove", {})).error is not None
        await gate.advance(3)
        refused = await caller.call("files__read", {"text": "x" * 100_000}, task={"ttl": 60_000})
        assert (refused.error["data"]["error_type"], refused.error["data"]["executed"]) == ("store_unavailable", "no")
        assert (await caller.call("files__read", {})).text == "text"
        pages(1_000_000)
        await gate.advance(30)
        kept = await rows(gate, limit=1_000)
        calls = sum(row["count"] for row in kept if row["kind"] in ("call", "denial", "gap"))
        assert calls >= 21, "each call of the sample and the first denial have a row, or are counted in a gap"
        assert (await caller.call("files__read", {}, task={"ttl": 60_000})).result["task"]["taskId"]


@virtual_time
async def test_rows_for_which_the_queue_has_no_room_on_a_full_disk_are_counted_in_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        store = gate.life.app.store
        assert isinstance(store, SqliteStore)
        await task_of(gate, "ann")
        await gate.advance(3)
        before = {row["id"] for row in await rows(gate)}

        def pages(limit: int) -> None:
            store.engine.writer._connection.execute(f"PRAGMA max_page_count={limit}")

        await in_writer(store, lambda: pages(1))
        monkeypatch.setattr(batch_writer, "MAX_DEFERRED", 3)
        monkeypatch.setattr(journal, "MAX_KEPT_ROWS", 10)
        monkeypatch.setattr(journal, "HISTORY_ROWS_PER_ROUND", 50)
        caller = await gate.caller("2025", token=TOKEN.format("ann"))
        calls = 0
        while calls < 400:
            for _ in range(5):
                assert (await caller.call("files__read", {"text": f"{calls}"})).text == "text", calls
                calls += 1
            await gate.advance(2)
        await gate.advance(60)
        pages(1_000_000)
        await gate.advance(30)
        kept = [row for row in await rows(gate, limit=1_000) if row["id"] not in before]
        audit = (await gate.operator("GET", "/api/v1/audit?limit=500")).json()["rows"]
        assert {"call", "calls"} <= {row["event"] for row in audit}, "calls without room for their row are counted"
        (gap,) = [row for row in kept if row["kind"] == "gap"]
        written = sum(row["count"] for row in kept if row["kind"] == "call")
        assert written + gap["count"] == calls
        assert gap["accepted_at"] < gap["ended_at"]


@virtual_time
async def test_cursors_of_earlier_versions_and_other_lists_are_refused() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        ids = [await task_of(gate, "ann") for _ in range(3)]
        tasks = (await gate.operator("GET", "/api/v1/tasks?limit=1")).json()["next"]
        cursor = (await gate.operator("GET", "/api/v1/history?limit=1")).json()["next"]
        for foreign in (ids[0], tasks, "0", "-1", "9" * 40, "\u0000", cursor[:-9], "a" * 5_000):
            reply = await gate.operator("GET", f"/api/v1/history?{urlencode({'limit': 1, 'after': foreign})}")
            assert (reply.status, "rows" in reply.json()) == (400, False), foreign
        gate.crash()
        await gate.start()
        reply = await gate.operator("GET", f"/api/v1/history?{urlencode({'limit': 1, 'after': cursor})}")
        assert reply.status in (200, 400), "continued or refused, but never an error of the gateway"


@virtual_time
async def test_hostile_names_stay_text_on_every_page() -> None:
    hostile = "<script>alert(1)</script>\"'onload=x\u202e%00/../?&#"
    async with Gateway(CONFIG, {"files": files()}) as gate:
        store = gate.life.app.store
        now = store.now_ms()
        row = HistoryRow(
            kind=RowKind.CALL,
            outcome=CallOutcome.FAILED,
            caller=hostile,
            scope=hostile,
            server=hostile,
            tool=hostile,
            client=hostile,
            trace=hostile,
            accepted_ms=now - 5,
            sent_ms=now - 4,
            ended_ms=now,
            error_type=hostile,
            rule=hostile,
            reason=hostile,
            approved_by=hostile,
        )
        add_history(store, [row])
        add_counts(store, now, counted(hostile, "", hostile, hostile, outcome=CallOutcome.FAILED, step=5, calls=9))
        await gate.advance(3)
        (found,) = await rows(gate)
        boss = await Person(gate).log_in(TOKEN.format("olga"))
        named = quote(hostile, safe="")
        for path in (
            "/overview",
            "/overview?range=week",
            "/tasks",
            "/tasks?sort=tool&columns=1&column=client&column=scope&column=approved_by",
            f"/tasks?server={named}&tool={named}&text={named}",
            f"/tasks/{found['id']}",
            "/callers",
            f"/caller?name={named}",
            "/tools",
            f"/tool?server={named}&tool={named}",
            f"/find?text={named}",
            f"/audit?text={named}",
        ):
            page = await boss.text(path)
            assert "<script>alert" not in page, path
            assert "\u202e" not in page, path
            assert not re.search(r'<[^>]*"onload=x', page), path


@virtual_time
async def test_finished_task_runs_again_as_the_person_who_asks() -> None:
    upstream = files()
    async with Gateway(CONFIG, {"files": upstream}) as gate:
        task_id = await task_of(gate, "ann", path="a.txt")
        path = f"/api/v1/tasks/{task_id}/rerun"
        assert (await gate.http("POST", path, {}, headers=whose("bob")).done()).status == 404
        reply = (await gate.http("POST", path, {}, headers=whose("ann")).done()).json()
        await gate.advance(3)
        assert upstream.count("read") == 2
        again = (await gate.http("GET", f"/api/v1/tasks/{reply['task_id']}", headers=whose("ann")).done()).json()
        assert (again["rerun_of"], again["principal"], again["arguments"]) == (task_id, "ann", {"path": "a.txt"})
        (row,) = await rows(gate, text=reply["task_id"])
        assert row["parent"] == task_id
        by_olga = await gate.http("POST", path, {}, headers=whose("olga")).done()
        if by_olga.status == 200:
            await gate.advance(3)
            assert (await rows(gate, text=by_olga.json()["task_id"]))[0]["caller"] == "olga"
        await gate.advance(GONE_S)
        assert (await gate.http("POST", path, {}, headers=whose("ann")).done()).status == 410
        assert upstream.count("read") == (3 if by_olga.status == 200 else 2)


@virtual_time
async def test_task_with_redacted_arguments_is_not_run_again() -> None:
    upstream = files()
    async with Gateway(CONFIG, {"files": upstream}) as gate:
        task_id = await task_of(gate, "ann", path="a.txt", pin="1234")
        reply = await gate.http("POST", f"/api/v1/tasks/{task_id}/rerun", {}, headers=whose("ann")).done()
        assert reply.status == 409
        await gate.advance(3)
        assert upstream.count("read") == 1


@virtual_time
async def test_rerun_passes_the_rules_of_now() -> None:
    upstream = files()
    async with Gateway(CONFIG, {"files": upstream}) as gate:
        task_id = await task_of(gate, "ann")
        await gate.reload({**CONFIG, "governance": {"rules": [{"match": "*", "action": "deny"}]}})
        reply = await gate.http("POST", f"/api/v1/tasks/{task_id}/rerun", {}, headers=whose("ann")).done()
        assert reply.json()["task_id"] is None
        assert upstream.count("read") == 1


@virtual_time
async def test_erasure_leaves_no_name_in_the_history() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        await task_of(gate, "ann")
        caller = await gate.caller("2025", token=TOKEN.format("ann"))
        for _ in range(5):
            await caller.call("files__remove", {})
        await gate.advance(2)
        export = await gate.http(
            "GET", "/api/v1/data/export?principal=ann&after=history:", headers=whose("root")
        ).done()
        assert {row["kind"] for row in export.json()["rows"]} == {"history"}
        reply = await gate.http("POST", "/api/v1/data/erase", {"principal": "ann"}, headers=whose("root")).done()
        assert reply.json()["erased"]["history"] == 3
        await gate.advance(120)
        assert await rows(gate) == []
        totals = await gate.operator("GET", "/api/v1/history/totals?by=caller")
        assert "ann" not in [row["name"] for row in totals.json()]


@virtual_time
async def test_content_is_kept_and_redacted_on_request() -> None:
    async with Gateway({**CONFIG, "history": {"content": True}}, {"files": files()}) as gate:
        task_id = await task_of(gate, "ann", path="a.txt", pin="1234")
        await gate.advance(GONE_S)
        shown = (await gate.operator("GET", f"/api/v1/history/{task_id}")).json()["content"]
        assert shown["arguments"] == {"path": "a.txt", "pin": "[hidden]"}
        assert shown["result"]["content"][0]["text"] == "text"


@virtual_time
async def test_export_keeps_the_filter_and_neutralises_formulas() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        caller = await gate.caller("2025", token=TOKEN.format("ann"))
        await caller.call("=cmd|' /C calc'!A0", {})
        await caller.call("files__read", {})
        await gate.advance(3)
        path = "/api/v1/history/export?outcome=denied&format="
        csv = (await gate.http("GET", path + "csv", headers=whose("olga")).done()).body.decode()
        assert csv.count("\n") == 2
        assert "'=cmd" in csv
        lines = (await gate.http("GET", path + "jsonl", headers=whose("olga")).done()).body.splitlines()
        assert len(lines) == 1
        assert (await gate.http("GET", path + "xml", headers=whose("olga")).done()).status == 400


@pytest.mark.parametrize(
    "query",
    ["outcome=x", "kind=x", "since=x", "by=x&since=1h", "buckets=0", "buckets=99999", "since=1h&until=2h", "limit=0"],
)
@virtual_time
async def test_wrong_parameters_are_refused(query: str) -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        path = "series" if query.startswith(("by", "buckets", "since=1h")) else ""
        reply = await gate.http(
            "GET", f"/api/v1/history/{path}?{query}".replace("/?", "?"), headers=whose("olga")
        ).done()
        assert reply.status == 400


@virtual_time
async def test_range_of_ten_years_has_a_bounded_number_of_buckets() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        await task_of(gate, "ann")
        await gate.advance(15)
        for path in ("since=3650d", "since=1970-01-01", "since=1970-01-01&until=9999-01-01"):
            reply = await gate.operator("GET", f"/api/v1/history/series?{path}&buckets=400")
            assert reply.status == 200
            assert len(reply.json()["buckets"]) <= 401
        assert len(await rows(gate, since="1970-01-01", until="9999-12-31")) == 1


@virtual_time
async def test_rows_survive_a_crash_that_follows_the_end_of_their_task() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        task_id = await task_of(gate, "ann")
        gate.crash()
        await gate.start()
        found = await gate.life.app.store.ask(FindHistory(HistoryFilter()))
        assert [row.task_id for row in found.rows] == [task_id]


async def failed_with(gate: Gateway, tool: str, **arguments: Any) -> dict[str, Any]:
    """The row of a plain call of this tool."""
    caller = await gate.caller("2025", token=TOKEN.format("ann"))
    await caller.call(f"files__{tool}", arguments)
    await gate.advance(3)
    return (await rows(gate, tool=tool))[0]


@virtual_time
async def test_row_of_a_failed_plain_call_states_why() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        broken = await failed_with(gate, "broken")
        assert (broken["outcome"], broken["reason"], broken["rule"]) == ("tool_error", "no such file", "defaults")
        refusing = await failed_with(gate, "refusing", what="x" * 500)
        assert (refusing["outcome"], refusing["error_type"]) == ("failed", "jsonrpc -32042")
        assert refusing["reason"].startswith("cannot use xxx")
        assert len(refusing["reason"]) == LONGEST_REASON == 200
        lost = await failed_with(gate, "cut")
        assert lost["outcome"] == "failed"
        assert "connection" in lost["reason"]
        assert (await failed_with(gate, "read"))["reason"] == ""
        boss = await Person(gate).log_in(TOKEN.format("olga"))
        shown = await boss.text("/tasks?state=all&tool=broken")
        assert "no such file" in shown
        assert "defaults" not in shown


@virtual_time
@pytest.mark.parametrize(
    ("hidden", "expected_text"),
    [
        ("hunter2-hunter2", "cannot use [hidden] here"),
        ("1234", "cannot use [hidden] here"),
        (1234, "cannot use [hidden] here"),
        ({"a": ["hunter2-hunter2"]}, "cannot use {'a': ['[hidden]']} here"),
        ('x" y/z\n' * 3, "cannot use [hidden] here"),
    ],
)
async def test_reason_has_no_value_that_a_card_would_hide(hidden: Any, expected_text: str) -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        row = await failed_with(gate, "refusing", what=hidden, pin=hidden)
        assert row["reason"] == expected_text
        # Without the arguments it is not known what to hide.
        long = await failed_with(gate, "refusing", what=hidden, pin=hidden, more="x" * 20_000)
        assert (long["outcome"], long["reason"]) == ("failed", "")


@virtual_time
async def test_reasons_can_be_switched_off() -> None:
    async with Gateway(CONFIG | {"history": {"reasons": "off"}}, {"files": files()}) as gate:
        row = await failed_with(gate, "broken")
        assert (row["outcome"], row["reason"]) == ("tool_error", "")
        await gate.reload(CONFIG)
        assert (await failed_with(gate, "broken"))["reason"] == "no such file"


@virtual_time
async def test_round_that_the_database_refuses_is_tried_again() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        path = gate.state / "taskgate.db"
        await failed_with(gate, "read")
        with closing(sqlite3.connect(path)) as broken:
            broken.execute("CREATE TRIGGER no BEFORE INSERT ON call_sums BEGIN SELECT RAISE(ABORT, 'broken'); END")
            caller = await gate.caller("2025", token=TOKEN.format("ann"))
            assert (await caller.call("files__read", {})).text == "text"
            await gate.advance(2)
            assert len(await rows(gate)) == 1, "the row is not written without the sums"
            broken.execute("DROP TRIGGER no")
        await gate.advance(12)
        assert [row["kind"] for row in await rows(gate)] == ["call", "call"]
        totals = (
            await gate.http("GET", "/api/v1/history/totals?by=caller&since=1h", headers=whose("olga")).done()
        ).json()
        assert [(row["name"], row["calls"]) for row in totals] == [("ann", 2)]


@virtual_time
async def test_round_that_the_database_never_accepts_is_lost_with_a_gap() -> None:
    async with Gateway(CONFIG, {"files": files()}) as gate:
        path = gate.state / "taskgate.db"
        await failed_with(gate, "read")
        with closing(sqlite3.connect(path)) as broken:
            broken.execute("CREATE TRIGGER no BEFORE INSERT ON call_sums BEGIN SELECT RAISE(ABORT, 'broken'); END")
            caller = await gate.caller("2025", token=TOKEN.format("ann"))
            for _ in range(2):
                assert (await caller.call("files__read", {})).text == "text"
            await gate.advance(8)
            broken.execute("DROP TRIGGER no")
        assert (await caller.call("files__read", {})).text == "text"
        await gate.advance(12)
        assert sorted((row["kind"], row["count"]) for row in await rows(gate)) == [("call", 1), ("call", 1), ("gap", 2)]
        totals = (
            await gate.http("GET", "/api/v1/history/totals?by=caller&since=1h", headers=whose("olga")).done()
        ).json()
        assert [(row["name"], row["calls"]) for row in totals] == [("ann", 2)]


@virtual_time
async def test_every_call_of_a_busy_second_has_its_audit_row_where_that_is_asked_for() -> None:
    async with Gateway(CONFIG | {"audit": {"calls": "every"}}, {"files": files()}) as gate:
        caller = await gate.caller("2025", token=TOKEN.format("ann"))
        for _ in range(1_500):
            await caller.call("files__read", {})
        await gate.advance(12)
        store = gate.life.app.store
        entries = [row.entry for row in await store.ask(AuditRows(limit=5_000)) if row.entry.event in ("call", "calls")]
        assert [entry.event for entry in entries] == ["call"] * 1_500
        totals = (
            await gate.http("GET", "/api/v1/history/totals?by=caller&since=1h", headers=whose("olga")).done()
        ).json()
        assert [(row["name"], row["calls"]) for row in totals] == [("ann", 1_500)]
