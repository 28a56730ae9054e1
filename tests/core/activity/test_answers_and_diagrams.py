"""Answers are validated against their question, and diagrams are generated from the tables in force."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.core.tasks.task_factory import a_task

from taskgate.core.activity import pending_on_servers, triggers
from taskgate.core.catalog.regex_filter import RegexFilter
from taskgate.core.diagrams import diagrams
from taskgate.core.errors import CallerError
from taskgate.core.events import Event, EventKind
from taskgate.core.questions.answers import (
    MAX_SCHEMA_BYTES,
    elicitation_answer,
    form_problem,
    sampling_answer,
)
from taskgate.core.questions.capabilities import with_inbox
from taskgate.core.questions.endings import mermaid
from taskgate.core.questions.question import ELICIT, SAMPLE
from taskgate.core.tasks.state import MOVES, TransitionKind
from taskgate.core.waterfall import DRAWN, Span, Waterfall, Window, diagram, in_window, parents_of

FORM = {
    "message": "Who?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}}},
}


@pytest.mark.parametrize(
    ("params", "action", "content", "sent"),
    [
        (FORM, "accept", {"name": "Ann"}, {"action": "accept", "content": {"name": "Ann"}}),
        (FORM, "decline", None, {"action": "decline"}),
        (FORM, "cancel", None, {"action": "cancel"}),
        ({"mode": "url", "url": "https://a.test"}, "accept", None, {"action": "accept"}),
        ({"requestedSchema": 7}, "accept", {"x": 1}, {"action": "accept", "content": {"x": 1}}),
        ({"requestedSchema": {"type": "nonsense"}}, "accept", {}, {"action": "accept", "content": {}}),
        ({"requestedSchema": {"$ref": "http://elsewhere.test/x"}}, "accept", {}, {"action": "accept", "content": {}}),
    ],
)
def test_a_valid_answer_becomes_a_protocol_result(
    params: dict[str, Any], action: str, content: Any, sent: dict[str, Any]
) -> None:
    assert json.loads(elicitation_answer(params, action, content).result or b"") == sent


@pytest.mark.parametrize(
    ("params", "action", "content", "expected_text"),
    [
        (FORM, "accept", {"name": "ann"}, "name"),
        (FORM, "accept", {"name": 1}, "name"),
        (FORM, "accept", None, '"content"'),
        (FORM, "accept", ["a"], '"content"'),
        (FORM, "decline", {"name": "Ann"}, "accept only"),
        ({"mode": "url"}, "accept", {"x": 1}, "without"),
        ({"requestedSchema": {"required": ["a"]}}, "accept", {}, "required"),
    ],
)
def test_an_invalid_answer_is_refused_with_the_reason(
    params: dict[str, Any], action: str, content: Any, expected_text: str
) -> None:
    with pytest.raises(CallerError) as refusal:
        elicitation_answer(params, action, content)
    assert expected_text in refusal.value.message


def test_a_huge_schema_is_not_used() -> None:
    assert form_problem({"description": "x" * MAX_SCHEMA_BYTES, "required": ["a"]}, {}) is None


@pytest.mark.parametrize("content", ["hi", {"type": "text", "text": "hi"}, [{"type": "text", "text": "hi"}]])
def test_a_message_may_be_text_a_block_or_blocks(content: Any) -> None:
    sent = json.loads(sampling_answer("assistant", content, "m", "endTurn").result or b"")
    assert (sent["role"], sent["model"], sent["stopReason"]) == ("assistant", "m", "endTurn")
    assert sent["content"] == ({"type": "text", "text": "hi"} if isinstance(content, str) else content)
    assert "stopReason" not in json.loads(sampling_answer("user", "x", "m", None).result or b"")


@pytest.mark.parametrize("content", [7, None, [], [7], {"text": "no type"}])
def test_a_message_without_a_block_is_refused(content: Any) -> None:
    with pytest.raises(CallerError):
        sampling_answer("assistant", content, "m", None)


@pytest.mark.parametrize(
    ("declared", "shown"),
    [
        ({}, {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}),
        ({"elicitation": {}}, {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}),
        (
            {"sampling": {"tools": {}}, "roots": {"listChanged": True}},
            {"roots": {"listChanged": True}, "sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}},
        ),
    ],
)
def test_an_inbox_adds_capabilities_for_questions(declared: dict[str, Any], shown: dict[str, Any]) -> None:
    assert with_inbox(declared) == shown


def test_capabilities_of_a_complete_caller_are_unchanged() -> None:
    declared: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
    assert with_inbox(declared) is declared


def test_the_five_diagrams_have_the_names_and_the_states_of_the_tables() -> None:
    drawn = {diagram["name"]: diagram["mermaid"] for diagram in diagrams()}
    assert list(drawn) == [
        "proxy_task_states",
        "pending_elicitation_states",
        "pending_sampling_states",
        "tool_call_lifecycle",
        "entity_relationships",
    ]
    for line in (
        "[*] --> working : execute_tool timeout expires",
        "working --> completed : Final server returns result",
        "working --> failed : Final server returns error",
        "working --> failed : Final server disconnects",
        "working --> cancelled : Client calls cancel_task",
    ):
        assert line in drawn["proxy_task_states"]
    assert "pending --> rejected" in drawn["pending_elicitation_states"]
    assert mermaid(SAMPLE) == drawn["pending_sampling_states"]
    assert "note right of pending" in mermaid(ELICIT)
    assert TransitionKind.CONTACT_LOST in {kind for moves in MOVES.values() for kind in moves}


def test_triggers_name_each_kind_once_and_lost_servers_separately() -> None:
    def happened(kind: EventKind) -> Event:
        return Event("x", kind.value, "s", 0, {})

    found = triggers(
        [
            happened(EventKind.NOTIFICATION),
            happened(EventKind.NOTIFICATION),
            happened(EventKind.SERVER_DISCONNECTED),
        ]
    )
    assert found == [
        {"type": "event", "server": "s", "eventType": "notification"},
        {"type": "server_disconnected", "server": "s"},
    ]


def test_open_tasks_are_grouped_by_server() -> None:
    task = a_task()
    (group,) = pending_on_servers([task, task], 0)
    assert group["server"] == task.server
    assert group["working_tasks"][0] == {"taskId": task.id, "toolName": task.tool, "status": "working"}
    assert len(group["working_tasks"]) == 2


def test_the_waterfall_is_bounded_and_draws_calls_under_their_request() -> None:
    ring = Waterfall(kept=3)
    for _ in range(5):
        ring.begin("request", "ping", "", "", "ann", now=1.0, began=1.0).over("ok", 2.0)
    assert len(ring.latest()) == 3
    request = ring.begin("request", "tools/call", "<b>", "", "ann", now=1.0, began=1.0)
    call = ring.begin("upstream", "tools/call", "t", "files", "ann", now=1.1, began=1.1, parent=request.number)
    call.over("error", 1.5)
    drawing = diagram(ring.latest(), 3.0)
    assert "&lt;b&gt;" in drawing
    assert "<b>" not in drawing
    assert '<li class="child"><span class="what">files: t</span>' in drawing
    assert 'class="t-bad"' in drawing
    assert ">failed 400 ms<" in drawing
    assert ">running 2 s<" in drawing
    assert (request.end, request.state, request.parent) == (0.0, "running", 0)
    assert call.parent == request.number
    assert "No requests yet" in diagram([], 0.0)
    assert DRAWN < 1000


def test_span_is_as_long_as_monotonic_clock_measures() -> None:
    span = Waterfall().begin("request", "ping", "", "", "ann", now=1_000_000.0, began=5.0)
    span.over("ok", 7.5)
    assert span.end == 1_000_002.5


def test_a_selected_range_of_the_waterfall_is_drawn() -> None:
    ring = Waterfall()
    early = ring.begin("request", "tools/call", "early", "", "ann", now=10.0, began=10.0)
    early.over("ok", 11.0)
    ring.begin("request", "tools/call", "late", "", "ann", now=20.0, began=20.0)
    whole = diagram(ring.latest(), 30.0)
    assert 'data-begin="10000.0" data-end="30000.0"' in whole
    assert "<span>0 ms</span><span>5 s</span><span>10 s</span><span>15 s</span>" in whole
    assert f'<a class="what" href="/waterfall?trace={early.number}">early</a>' in whole
    window = Window(10.5, 12.5)
    shown = in_window(ring.latest(), window, 30.0)
    assert [span.name for span in shown] == ["early"]
    part = diagram(shown, 30.0, window)
    assert 'data-begin="10500.0" data-end="12500.0"' in part
    assert '<rect class="t-ok" x="0.00%" width="25.00%"' in part
    assert '<span class="n">1 s</span>' in part
    assert [span.name for span in in_window(ring.latest(), Window(25.0, 26.0), 30.0)] == ["late"]
    assert "No requests in this period" in diagram([], 30.0, window)


@pytest.mark.parametrize(("pattern", "text", "matches"), [(None, "x", True), ("^a", "abc", True), ("^a", "cab", False)])
def test_expressions_match_anywhere(pattern: str | None, text: str, matches: bool) -> None:
    assert RegexFilter("tool", pattern).matches(text) is matches


@pytest.mark.parametrize("pattern", ["(", "(?=x)", r"(a)\1", "x" * 201])
def test_invalid_and_catastrophic_expressions_are_refused(pattern: str) -> None:
    with pytest.raises(CallerError):
        RegexFilter("tool", pattern)


def test_short_call_at_the_end_and_long_period_are_drawn() -> None:
    ring = Waterfall()
    ring.begin("request", "tools/call", "early", "", "ann", now=0.0, began=0.0).over("ok", 0.001)
    ring.begin("request", "tools/list", "", "", "ann", now=600.0, began=600.0).over("ok", 600.0)
    drawing = diagram(ring.latest(), 600.0)
    assert 'x="99.80%" width="0.20%"' in drawing, "a bar at the end of the axis is within it"
    assert 'x="0.00%" width="0.20%"' in drawing
    assert '<span class="n">10 min</span>' in drawing
    assert ">tools/list</a>" in drawing, "a request that is no call is named by its method"


def test_waterfall_links_calls_to_their_tasks() -> None:
    ring = Waterfall()
    call = ring.begin("request", "tools/call", "pay", "", "ann", now=1.0, began=1.0)
    call.belongs_to('tg_"x')
    run = ring.begin("task", "tools/call", "pay", "bank", "ann", now=1.0, began=1.0, parent=call.number)
    run.belongs_to("tg_run")
    poll = ring.begin("request", "tasks/get", "", "", "ann", now=2.0, began=2.0)
    drawing = diagram(ring.latest(), 3.0)
    assert 'href="/tasks/tg_&quot;x"' in drawing
    assert 'href="/tasks/tg_run"' in drawing
    assert f'href="/waterfall?trace={poll.number}"' in drawing
    assert (call.is_call, poll.is_call) == (True, False)
    assert (call.task, poll.task) == ('tg_"x', "")


def call_of_a_script(ring: Waterfall, task: str, script: str, line: int, at: float) -> Span:
    span = ring.begin("task", "tools/call", "buy", "shop", "ann", now=at, began=at)
    span.belongs_to(task)
    span.made_by(script, line)
    return span


def test_calls_of_a_script_are_drawn_below_the_request_that_started_it() -> None:
    ring = Waterfall()
    request = ring.begin("request", "tools/call", "run_script", "", "ann", now=1.0, began=1.0)
    request.belongs_to("tg_script")
    poll = ring.begin("request", "tasks/get", "tg_script", "", "ann", now=2.0, began=2.0)
    poll.belongs_to("tg_script")
    call = call_of_a_script(ring, "tg_call", "tg_script", 7, 3.0)
    orphan = call_of_a_script(ring, "tg_other", "tg_forgotten", 2, 4.0)
    plain = ring.begin("task", "tools/call", "buy", "shop", "ann", now=5.0, began=5.0)
    assert parents_of(ring.latest()) == {
        request.number: 0,
        poll.number: 0,
        call.number: request.number,
        orphan.number: 0,
        plain.number: 0,
    }
    drawing = diagram(ring.latest(), 6.0)
    assert '<li class="child"><a class="what" href="/tasks/tg_call">' in drawing
    assert "line 7: shop: buy" in drawing
    assert ">tasks/get tg_script</a>" in drawing, "a request that is no call is named by its method"
    assert drawing.index("tg_call") < drawing.index("tasks/get")
    assert (call.script, call.line) == ("tg_script", 7)
    assert (plain.script, plain.line) == ("", 0)
