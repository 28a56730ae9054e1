"""The card shows an approver everything, and states what is hidden."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.harness.cpu_time import least_cpu

from taskgate.core.governance.approval import Binding, Verdict, Voted, apply, open_approval
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.card import TAB, Card, card, excerpt, history_line, show_json, show_name, show_value
from taskgate.core.governance.script_plan import Meets, PlannedScript, PlannedTool, ScriptOrigin
from taskgate.core.governance.workflow import Workflow
from taskgate.core.redaction.fields import compile_redaction
from taskgate.core.text.homoglyphs import escape_homoglyphs

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


@pytest.mark.parametrize("blank", [*"\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164", "a\ufe0f", "❤\ufe0f\ufe0f"])
def test_blank_characters_are_made_visible_and_listed(blank: str) -> None:
    shown = made({"to": f"ann{blank}"})
    assert f"\\u{ord(blank[-1]):04x}" in shown.arguments
    assert [one.split()[0] for one in shown.deceptive] == [f"U+{ord(blank[-1]):04X}"]


@pytest.mark.parametrize("text", ["❤\ufe0f", "⚠\ufe0f high", "1\ufe0f\u20e3", "a\U0001f600"])
def test_emoji_are_not_deceptive(text: str) -> None:
    shown = made({"to": text})
    assert (json.loads(shown.arguments)["to"], shown.deceptive) == (text, ())
    assert text in shown.arguments


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/аdmin", "/home/\\u0430dmin"),
        ("раypаl.com", "\\u0440\\u0430yp\\u0430l.com"),
        ("/home/сора/x", "/home/\\u0441\\u043e\\u0440\\u0430/x"),
        ("сора", "\\u0441\\u043e\\u0440\\u0430"),
        ("pаy нow", "p\\u0430y \\u043dow"),
        ("x\nаdmin", "x\\n\\u0430dmin"),
        ("а\u200bdmin", "\\u0430\\u200bdmin"),
        ("Аdmin Ivаnov", "\\u0410dmin Iv\\u0430nov"),
        ("\u0261oogle", "\\u0261oogle"),
        ("ꓑayrol", "\\ua4d1ayrol"),
    ],
)
def test_homoglyphs_in_arguments_are_made_visible_and_listed(text: str, shown: str) -> None:
    card = made({"to": text})
    assert f'"{shown}"' in card.arguments
    assert card.deceptive


@pytest.mark.parametrize(
    "text",
    [
        "Хор Турецкого, с друзьями",
        "USB-кабель для iPhone",
        "/home/Документы",
        "Прочитай файл report.txt и а также о нём",
        "naïve Übung ısı fjörð",
        "Δx = 5 μm, α-Fe",
        "東京 Tokyo データ",
        "первая\nоса вторая",
        "καλημέρα κόσμε, το νυν",
        "Ընկեր ո",
    ],
)
def test_text_in_another_script_is_not_deceptive(text: str) -> None:
    card = made({"to": text})
    assert (json.loads(card.arguments)["to"], card.deceptive) == (text, ())
    assert json.dumps(text, ensure_ascii=False) in card.arguments


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("u1 ", "u1\\u0020"),
        (" u1", "\\u0020u1"),
        ("u  1", "u\\u0020 1"),
        ("u1\u3164", "u1\\u3164"),
        ("u\u00a01", "u\\u00a01"),
        ("аgent", "\\u0430gent"),
        ('a\n"b\\é', 'a\\n"b\\é'),
    ],
)
def test_names_that_look_alike_are_shown_differently(name: str, shown: str) -> None:
    assert show_name(name) == shown


def test_homoglyphs_in_values_are_shown() -> None:
    assert show_value({"path": "/home/\u0430dmin"}) == '{\n  "path": "/home/\\u0430dmin"\n}'
    assert show_value(["/home/admin", "Привет"]) == '[\n  "/home/admin",\n  "Привет"\n]'


def test_names_on_a_card_are_searched_for_deceptive_characters() -> None:
    for name, found in (("agent ", "U+0020 SPACE"), ("аgent", "U+0430 CYRILLIC SMALL LETTER A")):
        approval = open_approval("ap_1", TWO, "rules[2]", replace(BINDING, principal=name), 1_000)
        assert card(approval, TWO, {}, compile_redaction([])).deceptive == (f"{found} in the name of the caller",)
    assert made({}).deceptive == ()


def test_card_names_the_other_tools_that_look_like_this_one() -> None:
    assert made({}, alike=("PAY_NOW", "pаy_now")).deceptive == (
        "the name of the tool, which looks like PAY_NOW of the same server",
        "the name of the tool, which looks like p\\u0430y_now of the same server",
    )


@pytest.mark.unmeasured
@pytest.mark.parametrize("text", ["сор ", "слово ", "/сор a ", "а", "ж", "\\n\u0430"])
def test_search_for_homoglyphs_takes_linear_time(text: str) -> None:
    """Sixteen times the text takes about sixteen times as long."""
    long = text * (100_000 // len(text))
    short = long[::16]
    assert least_cpu(lambda: escape_homoglyphs(long), times=2) < 64 * least_cpu(lambda: escape_homoglyphs(short), 0, 5)


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
