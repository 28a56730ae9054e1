"""The text of a Slack card, and what is never in it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.channels.card_factory import a_card, decided

from taskgate.channels.slack_blocks import (
    ARGUMENTS_LIMIT,
    blocks,
    button_value,
    fallback_text,
    read_button_value,
    whole,
)
from taskgate.core.governance.approval import State
from taskgate.core.governance.script_plan import Meets, PlannedScript, PlannedTool, ScriptOrigin, plan_summary
from taskgate.core.redaction.difference import Difference


def test_a_card_contains_everything_an_approver_needs() -> None:
    text = json.dumps(
        blocks(a_card(last_approved={"amount": 5, "gone": 1, "token": "a"}), buttons=True), ensure_ascii=False
    )
    for words in (
        "*agent* requests approval to call *pay_now* on *reports*",
        "Workflow: money",
        "rules[2] pay_*",
        "0 of 2",
        "2027-01-15T08:09:59.000Z",
        "ap_1",
        "Redacted: token",
        "amount (changed): was 5 is 500",
        "gone (removed): was 1",
        'token (changed): was \\"[hidden]\\" is \\"[hidden]\\"',
    ):
        assert words in text


def test_misleading_characters_are_shown_in_names_changes_and_plans() -> None:
    odd = "\u0430dmin\u3164"  # a Cyrillic letter and a blank one
    before, after = {odd: "a", "to": odd}, {odd: ["b", odd], "to": "admin"}
    made = a_card(
        after,
        last_approved=before,
        requester=odd,
        tool=odd,
        server=odd,
        hidden=(odd,),
        plan=PlannedScript((PlannedTool(odd, Meets.APPROVAL, (1,)),)),
    )
    text = json.dumps(blocks(made, buttons=True), ensure_ascii=False)
    assert odd[0] not in text
    assert odd[-1] not in text
    assert text.count("\\u0430dmin") >= 8


def test_a_card_states_that_nothing_differs() -> None:
    same = {"amount": 500, "token": "t0p"}
    assert "The same arguments" in json.dumps(blocks(a_card(same, last_approved=same), buttons=True))


def test_many_differences_are_counted() -> None:
    before = {str(n): n for n in range(15)}
    after = {str(n): n + 1 for n in range(15)}
    made = a_card(after, last_approved=before)
    assert "and 5 more" in json.dumps(blocks(made, buttons=True))
    assert made.changes is not None
    many = a_card(after, changes=Difference(made.changes.changes, 7), url=None)
    assert "and 12 more" in json.dumps(blocks(many, buttons=True))


def test_hostile_text_cannot_become_markup() -> None:
    hostile = "<!channel> <https://evil.test|click> & *bold*"
    made = a_card({"note": hostile}, requester=hostile, tool="<@U0ANN>")
    everything = blocks(made, buttons=True)
    marked = [block["text"]["text"] for block in everything if block["type"] == "section"]
    assert not any("<!" in text or "<@" in text or "<https://evil" in text for text in marked)
    assert "<" not in fallback_text(made)
    (preformatted,) = [block for block in everything if block["type"] == "rich_text"]
    assert hostile in json.loads(preformatted["elements"][0]["elements"][0]["text"])["note"]


def test_deceptive_characters_are_marked() -> None:
    assert "RIGHT-TO-LEFT OVERRIDE" in json.dumps(blocks(a_card({"a": "x\u202ey"}), buttons=True))


@pytest.mark.parametrize("buttons", [True, False])
def test_a_truncated_card_has_no_approve_button(buttons: bool) -> None:
    long = a_card({"note": "x" * 5_000})
    text = json.dumps(blocks(long, buttons=buttons))
    assert not whole(long)
    assert "taskgate_approve" not in text
    assert "white_check_mark" not in text
    assert "characters are not shown here" in text
    assert "https://gate.test/approvals/ap_1" in text


def test_a_card_without_buttons_explains_the_reactions() -> None:
    text = json.dumps(blocks(a_card(), buttons=False))
    assert "white_check_mark" in text
    assert "taskgate_approve" not in text


@pytest.mark.parametrize("state", [state for state in State if state is not State.OPEN])
def test_a_decided_card_has_no_buttons(state: State) -> None:
    text = json.dumps(blocks(decided(state), buttons=True))
    assert "taskgate_" not in text
    assert "ann: deny" in text


@given(st.text(max_size=ARGUMENTS_LIMIT * 2))
def test_no_text_breaks_slacks_limits(note: str) -> None:
    made = blocks(a_card({"note": note}, requester=note, rule=note, reason=note), buttons=True)
    assert len(made) <= 50
    for block in made:
        if block["type"] in ("section", "header"):
            assert len(block["text"]["text"]) <= (150 if block["type"] == "header" else 3_000)


def test_a_button_contains_the_approval_and_the_digest_of_what_was_shown() -> None:
    assert read_button_value(button_value("ap_1", "sha256:abc")) == ("ap_1", "sha256:abc")


def test_card_of_a_script_has_its_plan_and_its_code() -> None:
    tools = (
        PlannedTool("shop__read", Meets.FORWARD, (1,)),
        PlannedTool("shop__<buy>", Meets.DENIED, (2,)),
        *(PlannedTool(f"t{n}", Meets.APPROVAL, (3,)) for n in range(20)),
    )
    plan = PlannedScript(tools, computed_lines=(4,))
    shown = blocks(a_card({"code": "x"}, script="await shop.read()\nx", plan=plan), buttons=True)
    text = json.dumps(shown, ensure_ascii=False)
    assert plan_summary(plan) in text
    assert "shop__&lt;buy&gt;" in text
    assert "shop__read" not in text
    assert "and 11 more" in text
    assert "await shop.read()\\nx" in text


def test_card_of_a_call_names_the_script_that_made_it() -> None:
    origin = ScriptOrigin("tg_1", 4)
    assert origin.in_words() in json.dumps(blocks(a_card(from_script=origin), buttons=True))
    assert "script" not in json.dumps(blocks(a_card(), buttons=True))


def test_long_code_is_cut_like_arguments() -> None:
    code = "x = 1\n" * 2_000
    card = a_card({"code": code}, script=code, plan=PlannedScript())
    assert not whole(card)
    assert len(json.dumps(blocks(card, buttons=True))) < 4 * ARGUMENTS_LIMIT
