"""Cedar as a policy engine: the three-way answer, exact types, errors that reject, and checks at load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from taskgate.core.governance.pipeline import PolicyAnswer, PolicyVerdict
from taskgate.core.patterns import PatternKind
from taskgate.policy import cedar
from taskgate.policy.cedar import BadPolicy, CedarEngine, load_cedar
from taskgate.policy.cedar_statements import PolicyFile, statements
from taskgate.policy.cedar_values import Inexpressible, cedar_record
from taskgate.ports.policy_engine import PolicyEngine, PolicyRequest, PolicyTime

FORWARD, APPROVE, REJECT = PolicyVerdict.FORWARD, PolicyVerdict.APPROVE, PolicyVerdict.REJECT
PAYMENTS = """\
// Small amounts go through, large ones are asked about, and nobody pays at night.
permit (principal, action == Taskgate::Action::"Forward", resource is Taskgate::Tool)
when { context.policy_id == "payments" && context.arguments.amount <= 100 };

@approval("money")
permit (
  principal in Taskgate::Role::"finance",
  action == Taskgate::Action::"Approve",
  resource == Taskgate::Tool::"reports:pay_now"
)
when { context.arguments.amount <= 10000 };

permit (principal, action == Taskgate::Action::"Approve", resource)
when { resource.tags.contains("slow") && context.arguments.amount <= 500 };

forbid (principal, action, resource) when { context.time.hour < 6 && context.arguments.amount > 50 };
"""
NOON = PolicyTime.at(1_800_014_400)


def engine(text: str = PAYMENTS, name: str = "payments.cedar") -> CedarEngine:
    return load_cedar([PolicyFile(name, text)])


def request(arguments: dict[str, Any], **changes: Any) -> PolicyRequest:
    made = PolicyRequest(
        principal="agent",
        roles=frozenset({"finance"}),
        server="reports",
        name="pay_now",
        arguments=arguments,
        scope="default",
        policy_id="payments",
        time=NOON,
    )
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("changes", "arguments", "verdict", "workflows"),
    [
        ({}, {"amount": 100}, FORWARD, ()),
        ({}, {"amount": 101}, APPROVE, ("money",)),
        ({"roles": frozenset()}, {"amount": 101}, REJECT, ()),
        ({"roles": frozenset(), "tags": frozenset({"slow"})}, {"amount": 101}, APPROVE, ()),
        ({"tags": frozenset({"slow"})}, {"amount": 101}, APPROVE, ("money",)),
        ({}, {"amount": 10_001}, REJECT, ()),
        ({"policy_id": "other"}, {"amount": 5}, APPROVE, ("money",)),
        ({"name": "pay_later"}, {"amount": 101}, REJECT, ()),
        ({"server": "other"}, {"amount": 101}, REJECT, ()),
        ({"kind": PatternKind.RESOURCE}, {"amount": 5}, REJECT, ()),
        ({"time": PolicyTime(3, 1, 0)}, {"amount": 60}, REJECT, ()),
        ({"time": PolicyTime(3, 1, 0)}, {"amount": 50}, FORWARD, ()),
    ],
)
def test_forward_then_approve_then_reject(
    changes: dict[str, Any], arguments: dict[str, Any], verdict: PolicyVerdict, workflows: tuple[str, ...]
) -> None:
    answer = engine().evaluate(request(arguments, **changes))
    assert (answer.verdict, answer.workflows) == (verdict, workflows)


def test_the_reason_names_the_policies_that_decided() -> None:
    made = engine()
    assert made.evaluate(request({"amount": 5})).reason == "payments.cedar:2"
    assert made.evaluate(request({"amount": 500})).reason == "payments.cedar:5"
    assert made.evaluate(request({"amount": 99_999})).reason == "no policy permits it"
    assert made.evaluate(request({"amount": 99}, time=PolicyTime(3, 1, 0))).reason == "payments.cedar:16"


CONFUSED: list[Any] = [
    "500",
    "50",
    " 50",
    "",
    True,
    False,
    None,
    [],
    [50],
    {},
    {"amount": 50},
    50.0,
    50.5,
    0.00001,
    1e15,
    1e300,
    2**63,
    -(2**63) - 1,
    10**40,
    [None],
    {"__extn": {"fn": "decimal", "arg": "1.0"}},
    {"__entity": {"type": "Taskgate::Role", "id": "finance"}},
    {"__expr": "50"},
    {"x": [{"__extn": 1}]},
    "٥٠",
    "0x32",
    "5e1",
    "NaN",
    "null",
    "50\u200b",
]


@pytest.mark.parametrize("guard", ["<= 100", "> 100", "< 9999", ">= 0"])
@pytest.mark.parametrize("amount", CONFUSED, ids=repr)
def test_a_value_of_another_type_never_passes_a_guard(guard: str, amount: Any) -> None:
    """Bad input: type confusion (`amount: "500"` against `> 100`)."""
    permit = engine(f"permit (principal, action, resource) when {{ context.arguments.amount {guard} }};")
    forbid = engine(
        "permit (principal, action, resource);"
        f" forbid (principal, action, resource) when {{ context.arguments.amount {guard} }};"
    )
    assert permit.evaluate(request({"amount": amount})).verdict is REJECT
    assert forbid.evaluate(request({"amount": amount})).verdict is REJECT


def test_a_missing_attribute_rejects_even_where_another_policy_permits() -> None:
    """Bad input: missing attributes."""
    made = engine(
        'permit (principal, action == Taskgate::Action::"Forward", resource);\n'
        "forbid (principal, action, resource) when { context.arguments.amount > 100 };"
    )
    answer = made.evaluate(request({}))
    assert answer.verdict is REJECT
    assert "payments.cedar:2" in answer.reason
    assert "amount" in answer.reason
    assert made.evaluate(request({"amount": 5})).verdict is FORWARD


def test_an_error_in_the_second_step_rejects_too() -> None:
    made = engine(
        'permit (principal, action == Taskgate::Action::"Approve", resource) when { context.arguments.x > 1 };'
    )
    assert made.evaluate(request({"x": "2"})).verdict is REJECT
    assert made.evaluate(request({"x": 2})).verdict is APPROVE


def test_has_guards_a_member_that_may_be_missing_or_null() -> None:
    made = engine(
        "permit (principal, action, resource) unless { context.arguments has force && context.arguments.force };"
    )
    verdicts = [
        made.evaluate(request(arguments)).verdict
        for arguments in ({}, {"force": None}, {"force": False}, {"force": True})
    ]
    assert verdicts == [FORWARD, FORWARD, FORWARD, REJECT]


def test_floats_are_decimals_exactly() -> None:
    made = engine('permit (principal, action, resource) when { context.arguments.rate.lessThan(decimal("1.5")) };')
    assert made.evaluate(request({"rate": 1.4999})).verdict is FORWARD
    assert made.evaluate(request({"rate": 1.5})).verdict is REJECT
    assert made.evaluate(request({"rate": 1})).verdict is REJECT
    assert (
        made.evaluate(request({"rate": 1.49999})).reason
        == "cannot be evaluated: arguments.rate does not fit a decimal with 4 places"
    )


@pytest.mark.parametrize(
    ("condition", "forged"),
    [
        ('context.arguments.x.lessThan(decimal("1.5"))', {"__extn": {"fn": "decimal", "arg": "1.0"}}),
        ('context.arguments.x == Taskgate::Role::"root"', {"__entity": {"type": "Taskgate::Role", "id": "root"}}),
        ("context.arguments.x.y > 1", {"y": {"__expr": "2"}}),
    ],
)
def test_a_caller_cannot_pass_off_an_object_as_an_entity_or_a_decimal(condition: str, forged: dict[str, Any]) -> None:
    answer = engine(f"permit (principal, action, resource) when {{ {condition} }};").evaluate(request({"x": forged}))
    assert answer.verdict is REJECT
    assert "reserved key" in answer.reason


def test_names_cannot_break_out_of_their_quotes() -> None:
    made = engine('permit (principal == Taskgate::Caller::"ann", action, resource);')
    for principal in ('ann" || true || "', 'x", action, resource); permit(principal', "ann\n", "Ann", "ann\u200b"):
        assert made.evaluate(request({}, principal=principal)).verdict is REJECT
    assert made.evaluate(request({}, principal="ann")).verdict is FORWARD


def test_every_documented_attribute_is_available() -> None:
    made = engine("""permit (principal in Taskgate::Role::"finance", action, resource) when {
        resource.server == "reports" && resource.name == "pay_now" && resource.tags == ["a", "b"] &&
        context.server == "reports" && context.tool == "pay_now" && context.scope == "default" &&
        context.policy_id == "payments" && context.time.hour == 12 && context.time.day_of_week == 5 &&
        context.time.timestamp == 1800014400 && context.arguments == {"x": [1, "a"], "y": {"z": true}} };""")
    asked = request({"x": [1, "a"], "y": {"z": True}}, tags=frozenset({"a", "b"}))
    assert made.evaluate(asked) == PolicyAnswer(FORWARD, "payments.cedar:1")


@pytest.mark.parametrize(("kind", "type_"), [(PatternKind.RESOURCE, "Resource"), (PatternKind.PROMPT, "Prompt")])
def test_resources_and_prompts_have_their_own_types(kind: PatternKind, type_: str) -> None:
    made = engine(f"permit (principal, action, resource is Taskgate::{type_});")
    assert made.evaluate(request({}, kind=kind)).verdict is FORWARD
    assert made.evaluate(request({})).verdict is REJECT


def test_time_is_utc_and_weeks_begin_on_sunday() -> None:
    assert PolicyTime.at(0) == PolicyTime(0, 4, 0)
    assert PolicyTime.at(86_399 + 3 * 86_400) == PolicyTime(23, 0, 345_599)


def test_no_policies_reject_everything() -> None:
    assert load_cedar([]).evaluate(request({})).verdict is REJECT


def test_configured_entities_are_used() -> None:
    entities: list[dict[str, Any]] = [
        {"uid": {"type": "Taskgate::Role", "id": "finance"}, "attrs": {}, "parents": [{"type": "Team", "id": "money"}]},
        {"uid": {"type": "Taskgate::Caller", "id": "agent"}, "attrs": {"level": 3}, "parents": []},
        {"uid": {"type": "Team", "id": "money"}, "attrs": {}, "parents": []},
    ]
    text = 'permit (principal in Team::"money", action, resource) when { principal.level > 2 };'
    made = load_cedar([PolicyFile("p.cedar", text)], entities)
    assert made.evaluate(request({})).verdict is FORWARD
    assert made.evaluate(request({}, roles=frozenset())).verdict is REJECT
    assert made.evaluate(request({}, principal="other")).verdict is REJECT
    with pytest.raises(BadPolicy, match="unknown entity type Team"):
        engine(text)


def test_entities_that_cannot_be_read_are_an_error() -> None:
    broken = [{"uid": {"type": "Team", "id": "x"}, "attrs": {"a": None}, "parents": []}]
    with pytest.raises(BadPolicy, match="entities"):
        load_cedar([], broken)


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("\n\npermit (principal, action resource);", ["p.cedar:3: unexpected token"]),
        ("permit (principal, action, resource)", ["p.cedar:1: unexpected end"]),
        ('permit (principal == User::"ann", action, resource);', ["p.cedar:1: unknown entity type User"]),
        ("permit (principal is User, action, resource);", ["p.cedar:1: unknown entity type User"]),
        ("permit (principal, action, resource) when { principal is User };", ["unknown entity type User"]),
        ('permit (principal, action, resource) when { principal in Group::"a" };', ["unknown entity type Group"]),
        ('permit (principal is Taskgate::Caller in Group::"a", action, resource);', ["unknown entity type Group"]),
        ('permit (principal, action == Taskgate::Action::"forward", resource);', ["unknown action"]),
        (
            'permit (principal, action in [Taskgate::Action::"Forward", Action::"x"], resource);',
            ["unknown entity type"],
        ),
        ("permit (principal, action, resource) when { context.argument.x > 1 };", ["context has no 'argument'"]),
        ("permit (principal, action, resource) when { context has user };", ["context has no 'user'"]),
        ("permit (principal, action, resource) when { context.time.day == 1 };", ["context.time has no 'day'"]),
        ('permit (principal, action, resource) when { resource.title == "x" };', ["resource has no 'title'"]),
        ('permit (principal, action, resource) when { principal.name == "x" };', ["principal has no 'name'"]),
        ("permit (principal == ?principal, action, resource);", ["templates"]),
        ('@approval("ops") forbid (principal, action, resource);', ["@approval has no meaning"]),
        ('@approval("ops") permit (principal, action == Taskgate::Action::"Forward", resource);', ["no meaning"]),
        ("@approval permit (principal, action, resource);", ["names no workflow"]),
        (
            'permit (principal == User::"a", action, resource);\n\n// why; not\npermit (principal is Robot, action, resource);',
            ["p.cedar:1: unknown entity type User", "p.cedar:4: unknown entity type Robot"],
        ),
    ],
)
def test_an_invalid_policy_is_refused_with_file_and_line(text: str, complaints: list[str]) -> None:
    """Bad input: unreadable policy."""
    with pytest.raises(BadPolicy) as caught:
        engine(text, "p.cedar")
    assert len(caught.value.problems) == len(complaints)
    for problem, complaint in zip(caught.value.problems, complaints, strict=True):
        assert problem.startswith("p.cedar:")
        assert complaint in problem


def test_statements_are_split_at_semicolons_outside_strings_and_comments() -> None:
    text = 'a "x;\\"y" ; // no; \n/ b;\n\n  c'
    assert [(each.text, each.place) for each in statements(PolicyFile("f", text))] == [
        ('a "x;\\"y" ;', "f:1"),
        ("/ b;", "f:2"),
        ("c", "f:4"),
    ]


def test_named_workflows_are_reported_with_their_place() -> None:
    assert engine().workflows() == {"money": "payments.cedar:5"}


SCHEMA = {
    "type": "object",
    "properties": {
        "amount": {"type": "string"},
        "note": {"type": "string"},
        "deep": {"type": "object", "properties": {"flag": {"type": ["integer", "null"]}}},
        "free": {},
        "odd": True,
        "loose": {"type": "object"},
    },
}


@pytest.mark.parametrize(
    ("condition", "warning"),
    [
        ("context.arguments.amount > 100", "reads arguments.amount as a long, but the tool declares string"),
        ('context.arguments.amount.lessThan(decimal("1.0"))', "as a decimal"),
        ("context.arguments.amount.contains(1)", "as a set"),
        ("context.arguments.amount == 5", "as a long"),
        ("true == context.arguments.amount", "as a boolean"),
        ("context.arguments.amount && true", "as a boolean"),
        ("!context.arguments.note", "as a boolean"),
        ('context.arguments.deep.flag like "x*"', "reads arguments.deep.flag as a string"),
        ('context.arguments.amount == decimal("1.0")', "as a decimal"),
        ('context.arguments.amount == "5"', None),
        ("context.arguments.deep.flag == 5", None),
        ("context.arguments.free > 5", None),
        ("context.arguments.odd > 5", None),
        ("context.arguments.loose.x > 5", None),
        ("context.arguments.unheard > 5", None),
        ('context.tool == "pay_now" && context.arguments.unheard > 5', "which the tool does not declare"),
        ('resource.name == "other" && context.arguments.amount > 5', None),
        ("context.arguments.amount == context.arguments.note", None),
        ("context.arguments == {}", None),
        ("[1, 2].contains(context.arguments.amount)", None),
        ("context.arguments.amount + 1 == 1", "as a long"),
        ("context.arguments.amount == [1]", None),
        ('if context.arguments has amount then true else {"a": 1}.a > context.time.hour', None),
    ],
)
def test_arguments_that_a_tool_never_sends_are_warned_about(condition: str, warning: str | None) -> None:
    found = engine(f"permit (principal, action, resource) when {{ {condition} }};").contradictions(
        "reports", "pay_now", SCHEMA
    )
    assert len(found) == (0 if warning is None else 1)
    if warning is not None:
        assert warning in found[0]
        assert found[0].startswith("payments.cedar:1: for reports:pay_now")


def test_unknown_arguments_are_found_with_closed_schemas_and_policies_for_one_tool() -> None:
    any_person = engine("permit (principal, action, resource) when { context.arguments.unheard > 5 };")
    assert any_person.contradictions("reports", "pay_now", {**SCHEMA, "additionalProperties": False})
    one = engine(
        'permit (principal, action, resource == Taskgate::Tool::"reports:pay_now") when { context.arguments.u > 5 };'
    )
    assert one.contradictions("reports", "pay_now", SCHEMA)
    assert not one.contradictions("files", "pay_now", SCHEMA)


@pytest.mark.parametrize(
    ("condition", "read"),
    [
        ("true", set()),
        ("context.arguments.a > 1", {"a"}),
        ("context.arguments has b && context.arguments.a.c.d == context.arguments.e", {"a", "b", "e"}),
        ("context has arguments && context.arguments has b.c", {"b"}),
        ('[context.arguments["x y"]].contains(1) && context.tool == "a"', {"x y"}),
        ('context.arguments == {"a": 1}', None),
        ('{"a": context.arguments}.a.b == 1', None),
        ("context == {}", None),
        ("(if true then context else context).arguments.a == 1", None),
        ('context.arguments.hasTag("a")', None),
    ],
)
def test_only_arguments_that_a_policy_reads_are_passed_to_the_engine(condition: str, read: set[str] | None) -> None:
    made = engine(f"permit (principal, action, resource) when {{ {condition} }};")
    assert made._read == read
    assert made.evaluate(request({"unread": 0.123456})).verdict is REJECT


def test_the_example_in_the_documentation_does_what_its_table_says() -> None:
    text = (Path(__file__).parents[2] / "docs" / "governance.md").read_text()
    example = engine(text.partition("```cedar\n")[2].partition("```")[0])
    answers = [
        example.evaluate(asked)
        for asked in (
            request({"amount": 50}),
            request({"amount": 500}),
            request({"amount": 500}, roles=frozenset()),
            request({"amount": "50"}),
            request({}),
            request({"amount": 50}, time=PolicyTime(3, 1, 0)),
        )
    ]
    assert [answer.verdict for answer in answers] == [FORWARD, APPROVE, REJECT, REJECT, REJECT, REJECT]
    assert answers[1].workflows == ("money",)


def test_the_revision_follows_the_text() -> None:
    assert engine().revision == engine().revision
    assert engine().revision != engine(PAYMENTS.replace("100", "101")).revision


def test_cached_entities_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cedar, "MAX_REMEMBERED_ENTITIES", 2)
    made = engine()
    for number in range(5):
        assert made.evaluate(request({"amount": 5}, principal=f"p{number}")).verdict is FORWARD
    assert len(made._remembered) <= 2


def test_the_engine_implements_the_port() -> None:
    port: PolicyEngine = engine()
    assert port.revision.startswith("sha256:")


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5)
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=4), v, max_size=3), max_leaves=8
)
OPEN = engine("permit (principal, action, resource);")


@given(st.dictionaries(st.text(max_size=5), values, max_size=4))
def test_no_arguments_make_the_engine_raise(arguments: dict[str, Any]) -> None:
    answer = OPEN.evaluate(request(arguments))
    try:
        cedar_record(arguments)
    except Inexpressible:
        assert answer.verdict is REJECT
    else:
        assert answer.verdict is FORWARD


def test_a_value_that_is_not_json_is_inexpressible() -> None:
    with pytest.raises(Inexpressible):
        cedar_record({"a": object()})
