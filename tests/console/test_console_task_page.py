"""The page of one task: its timeline to scale, the same call to copy, and a tool error that is not shown as success.
Cards of the inbox: what the tool is, what it may do, what differs from the last approved call, and when the request expires."""

from __future__ import annotations

import html
import re
import shlex
from datetime import datetime
from typing import Any

import msgspec
import pytest
from markupsafe import escape
from tests.benchmarks.store import a_call
from tests.console.test_console_inbox import AGENT, HELD, held
from tests.console.test_console_pages import HOSTILE, form_token, known, operator
from tests.console.test_console_routes_and_streams import TASKS, TOKENS
from tests.tasks.test_answers_survive_promotion import CONFIG as ASKING
from tests.tasks.test_answers_survive_promotion import TOKEN, answer_in_round, painted
from tests.tasks.test_answers_survive_promotion import server as asking_server
from tests.virtual_time import Call, Gateway, Upstream, virtual_time

from taskgate.core.tasks.state import TaskState
from taskgate.dashboard.charts.phases import phase_bar
from taskgate.dashboard.found_text import MAX_MARKS, found_text
from taskgate.dashboard.rows import task_row
from taskgate.dashboard.task_phases import Phase, PhaseKind
from taskgate.dashboard.text_filters import task_status
from taskgate.replies.tasks import TaskRow


def shop() -> Upstream:
    made = Upstream("2025")

    @made.tool(
        "wipe", description=f"Wipe a disk. {HOSTILE}", annotations={"destructiveHint": True, "openWorldHint": True}
    )
    async def wipe(call: Call) -> str:
        await call.sleep(20)
        return "wiped"

    @made.tool("look", annotations={"readOnlyHint": True})
    async def look(call: Call) -> str:
        return "seen"

    @made.tool("fail")
    async def fail(call: Call) -> dict[str, Any]:
        await call.sleep(1)
        return {"content": [{"type": "text", "text": "no such disk"}], "isError": True}

    return made


@virtual_time
async def test_timeline_to_scale_shows_waiting_and_working() -> None:
    config = {**HELD, "tasks": {"execute_on": "approval"}}
    async with Gateway(config, {"shop": shop()}) as gate:
        await held(gate, "wipe", 1, disk="a")
        await gate.advance(59)
        (approval,) = (await gate.operator("GET", "/api/v1/approvals")).json()
        boss = await operator(gate)
        page = await boss.text("/inbox")
        values = {"back": "inbox", "digest": approval["arguments_digest"]}
        await boss.post(f"/approvals/{approval['id']}/approve", values, form_token(page))
        await gate.advance(40)
        shown = (await gate.operator("GET", f"/api/v1/tasks/{approval['task_id']}")).json()
        assert [(phase["kind"], phase["label"]) for phase in shown["phases"]] == [
            ("waiting", "waiting for approval"),
            ("working", "running on shop"),
        ]
        page = await boss.text(f"/tasks/{approval['task_id']}")
        waited, worked = re.findall(r'<rect class="t-(?:wait|run)" x="[\d.]+" width="([\d.]+)"', page)
        assert 2.5 < float(waited) / float(worked) < 3.5, "60 s of waiting beside 20 s of work"
        assert "waiting 1 min" in page
        assert "working 20 s" in page
        assert f'<dt>Rule</dt><dd><a href="/rules">{approval["rule"]}' in page
        for link in (f"/approvals/{approval['id']}", "/servers/shop", "/scopes/default", "/audit?text="):
            assert f'href="{link}' in page


@virtual_time
async def test_timeline_shows_how_long_answered_questions_waited() -> None:
    async with Gateway(ASKING, {"notes": asking_server(seconds=30)}) as gate:
        caller = await gate.caller("2025", token=TOKEN)
        call = caller.begin_call("notes__paint")
        task_id = (await call.done()).result["structuredContent"]["taskgate_notice"]["task_id"]
        await gate.advance(10)
        await answer_in_round(caller, "Which colour?", "blue")
        await gate.advance(10)
        await answer_in_round(caller, "Which size?", "large")
        assert await painted(gate, caller, task_id) == "blue large"
        shown = (await gate.operator("GET", f"/api/v1/tasks/{task_id}")).json()
        phases = [(phase["label"], _seconds(phase["from"], phase["to"])) for phase in shown["phases"]]
        assert phases[-2:] == [
            ("waiting for an answer", pytest.approx(20, abs=2)),
            ("running on notes", pytest.approx(30, abs=2)),
        ]
        asked, answered = (
            [step["at"] for step in shown["timeline"] if step["event"] == event]
            for event in ("Question asked", "Question answered")
        )
        assert len(asked) == len(answered) == 2
        assert _seconds(answered[0], answered[1]) == pytest.approx(10, abs=1)


def _seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def test_marks_and_phases_stay_inside_the_bar() -> None:
    phases = [Phase(PhaseKind.WAITING, HOSTILE, 1_000, 2_000), Phase(PhaseKind.WORKING, "run", 2_000, 2_001)]
    drawn = phase_bar(phases, [(0, HOSTILE), (10**15, "later")])
    assert "<script>" not in drawn
    assert "\u202e" not in drawn
    for x, width in re.findall(r'x="([\d.]+)" width="([\d.]+)"', drawn):
        assert 0 <= float(x) <= 1000 - 1
        assert float(x) + float(width) <= 1000.1
    assert phase_bar([], []) == ""


@virtual_time
async def test_same_call_can_be_copied_unless_an_argument_is_redacted() -> None:
    config = {**TOKENS, "approval": {"default": {"redact_fields": ["pin"]}}}
    async with Gateway(config, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        ids = []
        for arguments in ({"disk": "it's", "deep": [True, None]}, {"pin": "1234"}):
            reply = await caller.call("shop__wipe", arguments, task={"ttl": 60_000})
            ids.append(reply.result["task"]["taskId"])
        boss = await operator(gate)
        page = html.unescape(await boss.text(f"/tasks/{ids[0]}"))
        (command,) = re.findall(r'aria-label="taskgate call">([^<]*)</pre>', page)
        assert shlex.split(command) == [
            "taskgate",
            "call",
            "shop__wipe",
            '{"disk": "it\'s", "deep": [true, null]}',
            "--scope",
            "default",
        ]
        (code,) = re.findall(r'aria-label="Python">([^<]*)</pre>', page)
        compile(code, "copied", "exec")
        assert "[True, None]" in code
        assert "Copy this call" not in await boss.text(f"/tasks/{ids[1]}")


@virtual_time
async def test_tool_error_is_not_shown_as_completed() -> None:
    async with Gateway(TOKENS, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        made = (await caller.call("shop__fail", {}, task={"ttl": 60_000})).result["task"]["taskId"]
        await gate.advance(5)
        (row,) = (await gate.operator("GET", "/api/v1/tasks")).json()["tasks"]
        assert (row["state"], row["outcome"]) == ("completed", "tool_error")
        boss = await operator(gate)
        for page in ("/tasks", f"/tasks/{made}"):
            text = await boss.text(page)
            assert 'class="state tool_error"' in text
            assert 'class="state completed"' not in text
        assert "Finished: tool error" in text


@virtual_time
async def test_card_shows_what_the_tool_may_do_and_what_differs() -> None:
    config = {**HELD, "tasks": {"execute_on": "approval"}}
    async with Gateway(config, {"shop": shop()}) as gate:
        boss = await operator(gate)
        await held(gate, "wipe", 1, disk="a")
        page = await boss.text("/inbox")
        assert '<span class="risk destructive">' in page
        assert '<span class="risk open_world">' in page
        assert "Wipe a disk." in page
        assert "<script>alert" not in page
        assert 'class="diff' not in page, "nothing was approved before"
        (approval,) = (await gate.operator("GET", "/api/v1/approvals")).json()
        values = {"back": "inbox", "digest": approval["arguments_digest"]}
        await boss.post(f"/approvals/{approval['id']}/approve", values, form_token(page))
        await gate.advance(30)
        await held(gate, "wipe", 1, disk="b")
        page = await boss.text("/inbox")
        assert "Decided before: 1 approved, last by operator; 0 denied." in page
        (row,) = re.findall(r'<tr class="changed">(.*?)</tr>', page, re.DOTALL)
        assert "disk" in row
        assert html.unescape(row).index('"a"') < html.unescape(row).index('"b"')
        await held(gate, "look", 1)
        assert '<span class="risk reads_only">' in await boss.text("/inbox")
        assert "shown_risks" not in await (await known(gate, "agent")).text("/inbox")


@virtual_time
async def test_request_that_expires_soon_is_marked_and_an_expired_one_cannot_be_approved() -> None:
    config = {**HELD, "approval": {"default": {"timeout": "100s"}}}
    async with Gateway(config, {"shop": shop()}) as gate:
        await held(gate, "wipe", 1, disk="a")
        boss = await operator(gate)
        page = await boss.text("/inbox")
        assert 'class="soon"' not in page
        await gate.advance(50)
        assert 'class="soon"' in await boss.text("/inbox")
        (approval,) = (await gate.operator("GET", "/api/v1/approvals")).json()
        await gate.advance(60)
        values = {"back": "inbox", "digest": approval["arguments_digest"]}
        late = await boss.post(f"/approvals/{approval['id']}/approve", values, form_token(page))
        assert late.status == 409
        (task,) = (await gate.operator("GET", "/api/v1/tasks")).json()["tasks"]
        assert (task["state"], task["executed"]) == ("expired", "no")


@virtual_time
async def test_arguments_and_result_are_searched_without_a_script() -> None:
    text = f"Needle {HOSTILE} " + "filler " * 1_000 + "the last NEEDLE"
    async with Gateway(TOKENS, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        made = (await caller.call("shop__wipe", {"disk": text}, task={"ttl": 60_000})).result["task"]["taskId"]
        short = (await caller.call("shop__wipe", {"disk": "b"}, task={"ttl": 60_000})).result["task"]["taskId"]
        boss = await operator(gate)
        assert 'name="find"' not in await boss.text(f"/tasks/{short}"), "nothing to search in"
        page = await boss.text(f"/tasks/{made}")
        assert f'action="/tasks/{made}#found" data-partial' in page
        assert "<mark" not in page
        page = await boss.text(f"/tasks/{made}?find=nEEdle")
        assert re.findall(r"<mark[^>]*>[^<]*</mark>", page) == ['<mark id="found">Needle</mark>', "<mark>NEEDLE</mark>"]
        assert "2 matches</output>" in page
        assert "data-partial" not in page, "the whole text is searched and shown"
        assert "<script>alert" not in page
        assert "\u202e" not in page
        page = await boss.text(f"/tasks/{made}?find=%3Cscript%3Ealert(%22%3E")
        assert "<script>alert" not in page
        assert "<mark" not in page
        assert 'value="&lt;script&gt;alert(&#34;&gt;"' in page
        assert "0 matches</output>" in page
        page = await boss.text(f"/tasks/{made}?find=%3Cscript%3Ealert")
        assert '<mark id="found">&lt;script&gt;alert</mark>' in page


@virtual_time
async def test_kept_content_of_an_ended_call_is_searched() -> None:
    async with Gateway({**TOKENS, "history": {"content": True}}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        made = (await caller.call("shop__wipe", {"disk": "needle " * 200}, task={"ttl": 30_000})).result["task"][
            "taskId"
        ]
        await gate.advance(3_600)
        boss = await operator(gate)
        page = await boss.text(f"/tasks/{made}?find=needle")
        assert "Arguments and result" in page
        assert page.count("<mark") == 200
        assert "200 matches</output>" in page


def test_matches_are_marked_in_their_place() -> None:
    for text, wanted, marked in (
        ("aAa", "aa", '<mark id="found">aA</mark>a'),
        ("İstanbul <b>", "<B>", "İstanbul &lt;b&gt;"),  # longer in lower case: compared as it is
        ("İstanbul <b>", "<b>", 'İstanbul <mark id="found">&lt;b&gt;</mark>'),
        ("a.c abc", "a.c", '<mark id="found">a.c</mark> abc'),
    ):
        shown = found_text(text, 100, wanted)
        assert str(escape(shown.text)) == marked
    many = found_text("ab" * 2_000, 10_000, "ab")
    assert (many.matches, many.text.count("<mark")) == (2_000, MAX_MARKS)
    assert many.text.endswith("ab" * 1_000)


def a_row(state: TaskState, **changes: Any) -> TaskRow:
    return msgspec.structs.replace(task_row(msgspec.structs.replace(a_call("agent"), state=state)), **changes)


def test_progress_is_shown_while_a_task_is_open() -> None:
    assert a_row(TaskState.RUNNING, progress=1, progress_total=4).share == 25
    assert a_row(TaskState.COMPLETED, progress=1, progress_total=4).share is None


def test_status_does_not_repeat_the_state() -> None:
    assert task_status(a_row(TaskState.AWAITING_APPROVAL, message="Awaiting approval")) == ""
    assert task_status(a_row(TaskState.AWAITING_APPROVAL, message="1 of 2 approvals")) == "1 of 2 approvals"
    assert task_status(a_row(TaskState.RUNNING, message="")) == "Waiting for the server"


@virtual_time
async def test_task_names_its_tool_as_history_does_and_links_its_approval() -> None:
    async with Gateway(TOKENS, {"shop": shop()}) as gate:
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        made = (await caller.call("shop__wipe", {"disk": "a"}, task={"ttl": 600_000})).result["task"]["taskId"]
        boss = await operator(gate)
        page = await boss.text(f"/tasks/{made}")
        assert re.search(r'<h1>.*>wipe</a></span> <span class="on">on <a href="/servers/shop">shop</a>', page)
        assert "<dt>Called as</dt><dd><code>shop__wipe</code>" in page
        for address in ("/tasks", "/overview"):
            listed = await boss.text(address)
            assert re.search(r"<b>wipe</b>|>wipe</a>", listed)
            assert "shop__wipe</a>" not in listed


def unreliable() -> Upstream:
    made = Upstream("2025")

    @made.tool("look", annotations={"readOnlyHint": True})
    async def look(call: Call) -> str:
        for done in (1, 2, 3):
            call.progress(done, 3, message=f"page {done} {HOSTILE}")
            await call.sleep(20)
        return "seen"

    return made


@virtual_time
async def test_timeline_has_every_attempt_with_its_start_end_and_reason() -> None:
    shop = unreliable()
    async with Gateway({**TOKENS, "servers": {"shop": {"trust_annotations": True}}}, {"shop": shop}) as gate:
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        made = (await caller.call("shop__look", {}, task={"ttl": 600_000})).result["task"]["taskId"]
        await gate.advance(10)
        shop.disconnect()
        await gate.advance(10)
        gate.crash()
        await gate.restart()
        await gate.advance(100)
        shown = (await gate.operator("GET", f"/api/v1/tasks/{made}")).json()
        assert (shown["state"], shown["attempts"]) == ("completed", 3)
        steps = [(step["event"], step["detail"]) for step in shown["timeline"] if "ttempt" in str(step)]
        assert [event for event, _ in steps] == [
            "Sent to shop",
            "Attempt 1 ended",
            "Sent to shop",
            "Attempt 2 ended",
            "Sent to shop",
        ]
        assert "connection failed" in steps[1][1]
        assert "gateway stopped" in steps[3][1]
        assert all("may have been executed" in steps[place][1] for place in (1, 3))
        working = [phase for phase in shown["phases"] if phase["kind"] == "working"]
        assert [phase["label"] for phase in working] == [f"running on shop, attempt {number}" for number in (1, 2, 3)]
        assert _seconds(working[0]["from"], working[0]["to"]) == pytest.approx(10, abs=2)
        assert _seconds(working[2]["from"], working[2]["to"]) == pytest.approx(60, abs=2)
        page = await (await operator(gate)).text(f"/tasks/{made}")
        assert page.count("<b>Sent to shop</b>") == 3
        assert page.count("<b>Attempt ") == 2


@virtual_time
async def test_timeline_has_the_steps_of_progress() -> None:
    async with Gateway(TOKENS, {"shop": unreliable()}) as gate:
        caller = await gate.caller("2025", token=AGENT, capabilities=TASKS)
        made = (await caller.call("shop__look", {}, task={"ttl": 600_000})).result["task"]["taskId"]
        await gate.advance(120)
        shown = (await gate.operator("GET", f"/api/v1/tasks/{made}")).json()
        steps = [step for step in shown["timeline"] if step["event"] == "Progress"]
        assert [step["detail"].partition(" <")[0] for step in steps] == [
            "1 of 3: page 1",
            "2 of 3: page 2",
            "3 of 3: page 3",
        ]
        assert _seconds(steps[0]["at"], steps[2]["at"]) == pytest.approx(40, abs=2)
        page = await (await operator(gate)).text(f"/tasks/{made}")
        assert page.count("<b>Progress</b>") == 3
        assert "<script>alert" not in page


@virtual_time
async def test_tool_page_lists_accepted_definitions_with_their_differences() -> None:
    shop = Upstream("2025")
    shop.tool("look", _looked, description="Version 1")
    config = {**TOKENS, "pins": "enforce"}
    async with Gateway(config, {"shop": shop}) as gate:
        caller = await gate.caller("2025", token=AGENT)
        await caller.request("tools/list", {})
        boss = await operator(gate)
        assert "Accepted definitions" not in await boss.text("/tool?server=shop&tool=look"), "there is only one"
        for text in ("Version 2", f"Version 3 {HOSTILE}"):
            shop.tool("look", _looked, description=text)
            shop.notify("notifications/tools/list_changed")
            await gate.advance(30)
            (changed,) = (await gate.operator("GET", "/api/v1/pins")).json()
            body = {"server": "shop", "tool": "look", "digest": changed["digest"]}
            assert (await gate.operator("POST", "/api/v1/pins/accept", body)).status == 200
        rows = (await gate.operator("GET", "/api/v1/pins/history?server=shop&tool=look")).json()
        assert len(rows) == 3
        assert [row["changes"] is None for row in rows] == [False, False, True]
        assert [change["before"] for change in rows[1]["changes"]["list"] if change["path"] == "description"] == [
            "Version 1"
        ]
        assert (rows[2]["by"], bool(rows[0]["by"])) == ("", True)
        page = await boss.text("/tool?server=shop&tool=look")
        assert page.count("<summary><time") == 2
        assert "Version 1" in page
        assert "<script>alert" not in page
        assert (await gate.operator("GET", "/api/v1/pins/history?server=shop")).status == 400


async def _looked(call: Call) -> str:
    return "seen"
