"""The card shows an approver everything, and states what is hidden."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.governance.approval import Binding, Verdict, Voted, apply, open_approval
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.card import TAB, Card, card, excerpt, history_line, show_json
from taskgate.core.governance.script_plan import Meets, PlannedScript, PlannedTool, ScriptOrigin
from taskgate.core.governance.workflow import Workflow
from taskgate.core.redaction.fields import compile_redaction

TWO = Workflow("money", approvals_needed=2)
BINDING = Binding("agent", "reports", "pay_now", "sha256:a", "sha256:d", "r1", 0, scope="default")


def made(arguments: Any, **more: Any) -> Card:
    approval = open_approval("ap_1", TWO, "rules[2] pay_*", BINDING, 1_000)
    voted = apply(approval, TWO, Voted(Approver("ann", frozenset({"approver"})), Verdict.APPROVE, 1_100))
    return card(voted.approval, TWO, arguments, compile_redaction(["token"]), **more)


def test_the_card_contains_caller_tool_reason_and_deadline() -> None:
    shown = made({"amount": 5, "token": "t0p"}, url="https://gate.test/approvals/ap_1")
    assert (shown.server, shown.tool, shown.requester, shown.rule) == ("reports", "pay_now", "agent", "rules[2] pay_*")
    assert (shown.approvals_given, shown.approvals_needed, shown.expires_at_ms) == (1, 2, 601_000)
    assert (shown.hidden, shown.changes, shown.url) == (("token",), None, "https://gate.test/approvals/ap_1")
    assert "t0p" not in repr(shown)
    assert history_line(shown.votes) == "ann: approve"


def test_the_card_shows_what_differs_from_the_last_approved_call() -> None:
    changes = made({"amount": 500, "token": "b"}, last_approved={"amount": 5, "token": "a"}).changes
    assert changes is not None
    assert [(change.path, change.hidden) for change in changes.changes] == [("amount", False), ("token", True)]


def test_deceptive_characters_are_made_visible_and_listed() -> None:
    shown = made({"to": "ann\u202egnp.exe\u200b", "tag": "\U000e0041"})
    assert "\u202e" not in shown.arguments
    assert "\\u202e" in shown.arguments
    assert "\\udb40\\udc41" in shown.arguments
    assert shown.deceptive == (
        "U+202E RIGHT-TO-LEFT OVERRIDE",
        "U+200B ZERO WIDTH SPACE",
        "U+E0041 TAG LATIN CAPITAL LETTER A",
    )


def test_script_is_shown_line_by_line_with_deceptive_characters_escaped() -> None:
    shown = made({"code": "x = 1\n# \u202e\r\nx", "token": "t0p"}, runs_script=True)
    assert shown.script == "x = 1\n# \\u202e\nx"
    assert made({"code": "x = 1"}).script == made({"code": 7}, runs_script=True).script == ""


def test_tabs_in_a_script_are_shown_as_such() -> None:
    assert made({"code": "if x:\n\ty = '→'"}, runs_script=True).script == f"if x:\n{TAB}   y = '→'"


def test_carriage_return_ends_the_line_of_a_shown_script() -> None:
    """It ends a comment for the interpreter, so that what follows is code."""
    assert made({"code": "# a comment\rbuy()"}, runs_script=True).script == "# a comment\\u000d\nbuy()"


def test_card_has_the_plan_of_the_approval() -> None:
    plan = PlannedScript((PlannedTool("shop__buy", Meets.DENIED, (1,)),))
    approval = open_approval("ap_1", TWO, "rules[2]", BINDING, 1_000, plan=plan)
    assert card(approval, TWO, {"code": ""}, compile_redaction([]), runs_script=True).plan == plan


def test_card_names_the_script_that_made_the_call() -> None:
    approval = open_approval("ap_1", TWO, "rules[2]", BINDING, 1_000, from_script=ScriptOrigin("tg_1", 4))
    assert card(approval, TWO, {}, compile_redaction([])).from_script == ScriptOrigin("tg_1", 4)


def test_a_truncated_value_states_how_much_is_missing() -> None:
    assert excerpt("abc", 3).left_out == 0
    assert (excerpt("abcdef", 4).text, excerpt("abcdef", 4).left_out) == ("abcd", 2)


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.none()))
def test_the_shown_text_parses_to_the_same_value(value: dict[str, Any]) -> None:
    text = show_json(value)
    assert json.loads(text) == value
    assert all(character == "\n" or character.isprintable() for character in text)


def test_large_values_that_changed_are_shown_by_their_beginning_and_all_arguments_in_full() -> None:
    large = made(
        {"text": "y" * 5000, "rows": ["abc"] * 100, "few": [1, 2], "flag": True},
        last_approved={"text": "x" * 4000, "rows": [], "few": [1], "flag": False},
    )
    assert large.changes is not None
    shown = {change.path: change.after for change in large.changes.changes}
    assert shown["text"] == "y" * 4000 + "… (1000 characters more)"
    assert shown["few.1"] == 2
    assert shown["flag"] is True
    assert large.arguments.count("abc") == 100
    whole = made({"rows": ["abc"] * 2000}, last_approved={"rows": {"a": 1}}).changes
    assert whole is not None
    (change,) = whole.changes
    assert change.before == {"a": 1}
    assert change.after.startswith('["abc", "abc"')
    assert change.after.endswith("… (more)")


def test_a_text_of_many_slices_is_made_visible_as_a_whole() -> None:
    text = ("ab\u202e" * 40_000) + "end"
    assert show_json(text) == '"' + "ab\\u202e" * 40_000 + 'end"'
