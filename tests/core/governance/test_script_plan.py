"""The plan of a script for its approvers: what is stored of it, and its texts."""

from __future__ import annotations

from taskgate.core.governance.script_plan import (
    MAX_LINES,
    MAX_TOOLS,
    Meets,
    PlannedScript,
    PlannedTool,
    ScriptOrigin,
    lines_text,
    meets_word,
    plan_notes,
    plan_summary,
    planned_script,
)


def test_plan_keeps_the_tools_that_are_not_simply_allowed() -> None:
    many = [PlannedTool(f"t{n}", Meets.FORWARD, (n + 1,)) for n in range(MAX_TOOLS + 20)]
    plan = planned_script([*many, PlannedTool("late", Meets.DENIED, (999,))])
    assert (len(plan.tools), plan.tools_left_out) == (MAX_TOOLS, 21)
    assert plan.tools[0].tool == "t0"
    assert plan.tools[-1] == PlannedTool("late", Meets.DENIED, (999,))


def test_plan_keeps_a_limited_number_of_lines() -> None:
    plan = planned_script([PlannedTool("t", Meets.POLICY, tuple(range(1, 100)))], [3, 3, 1], range(1, 100), [7])
    assert len(plan.tools[0].lines) == len(plan.computed_lines) == MAX_LINES
    assert (plan.unknown_lines, plan.question_lines) == ((1, 3), (7,))


def test_plan_as_json_has_every_field() -> None:
    plan = planned_script([PlannedTool("t", Meets.APPROVAL, (2,))], [1], [4], [5])
    assert plan.as_json() == {
        "tools": [{"tool": "t", "meets": "approval", "lines": [2]}],
        "tools_left_out": 0,
        "unknown_tools_on_lines": [1],
        "computed_names_on_lines": [4],
        "questions_on_lines": [5],
    }


def test_summary_counts_tools_by_what_they_would_meet() -> None:
    tools = (PlannedTool("a", Meets.FORWARD, (1,)), PlannedTool("b", Meets.DENIED, (2,)))
    words = meets_word(Meets.FORWARD), meets_word(Meets.DENIED)
    summary = plan_summary(PlannedScript(tools, 3, (4,), (5,), (6, 7)))
    assert f"1 {words[0]}, 1 {words[1]}, 3 " in summary
    assert "5 tools" in summary
    for note in plan_notes(PlannedScript(tools, 3, (4,), (5,), (6, 7))):
        assert note in summary
    assert plan_notes(PlannedScript()) == ()
    assert ":" not in plan_summary(PlannedScript())
    assert "1 tool:" in plan_summary(PlannedScript(tools[:1]))


def test_origin_of_a_call_names_its_script_and_line() -> None:
    known, unknown = ScriptOrigin("tg_1", 4), ScriptOrigin("tg_1")
    assert (known.as_json(), unknown.as_json()) == ({"task_id": "tg_1", "line": 4}, {"task_id": "tg_1", "line": None})
    assert "line 4" in known.in_words()
    assert "tg_1" in unknown.in_words()
    assert "line" not in unknown.in_words()


def test_lines_are_described_briefly() -> None:
    assert (lines_text([3]), lines_text([1, 2])) == ("line 3", "lines 1, 2")
    assert lines_text(range(1, 9)).endswith("5, …")
