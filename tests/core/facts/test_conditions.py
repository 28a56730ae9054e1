"""What each form of a condition requires, and what is left open by values that cannot be compared."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.cpu_time import PAUSE_S, least_cpu

from taskgate.core.facts.conditions import conditions, met, phrase
from taskgate.core.facts.kinds import MAX_CHOICES
from taskgate.core.facts.requirements import LONGEST_TEXT
from taskgate.core.facts.table import FACTS, MAX_ELEMENTS, NO_FACTS, Facts, plain_facts
from taskgate.core.facts.truth import MISSING, Truth
from taskgate.core.generations.generation import Generation
from taskgate.core.patterns import PatternKind
from taskgate.core.risk import Risk

YES, NO, OPEN = Truth.YES, Truth.NO, Truth.UNKNOWN


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("written", "given", "expected"),
    [
        ("> 1000", 1001, YES),
        ("> 1000", 1000, NO),
        (">= 1000", 1000, YES),
        ("< 0", -0.5, YES),
        ("<= 2", 2.5, NO),
        ("1..5", 5, YES),
        ("1..5", 5.01, NO),
        ("-2..-1", -1.5, YES),
        ("> 1000", 10**400, YES),
        ("> 1000", "5000", OPEN),
        ("> 1000", True, OPEN),
        ("> 1000", [5000], OPEN),
        ("> 1000", None, NO),
        ("prod", "prod", YES),
        ("prod", "Prod", NO),
        ("5", 5, YES),
        ("5", 5.0, YES),
        ("5", "5", YES),
        ("five", 5, NO),
        ("true", True, YES),
        ("false", True, NO),
        ("true", 1, NO),
        ("null", None, YES),
        ("prod", None, NO),
        ("prod", {"a": 1}, OPEN),
        ("", "", YES),
        ("*@evil.example", "me@evil.example", YES),
        ("*@evil.example", "me@good.example", NO),
        ("*@evil.example", 5, OPEN),
        ("*@evil.example", None, NO),
        ("*a", "a" * (LONGEST_TEXT + 1), OPEN),
        (["a", "b*"], "bc", YES),
        (["a", "> 5"], 3, NO),
        (["a*", "> 5"], 3, OPEN),
        ({"not": "prod"}, "test", YES),
        ({"not": "prod"}, {}, OPEN),
        ({"not": ["a", "b"]}, "a", NO),
        ({"equals": "> 1"}, "> 1", YES),
        ({"glob": "a?"}, "ab", YES),
        ({"one_of": ["a", "b"]}, "b", YES),
        ({"length": "> 3"}, "abcd", YES),
        ({"length": "3"}, [1, 2, 3], YES),
        ({"length": "3"}, {"a": 1}, NO),
        ({"length": "1..2"}, 5, OPEN),
        ({"length": "> 3"}, None, NO),
        ({"present": "true"}, 0, YES),
        ({"present": "true"}, None, NO),
        ({"present": "no"}, None, YES),
    ],
)
def test_condition_on_an_argument(written: Any, given: Any, expected: Truth) -> None:
    (condition,) = conditions({"argument.it": written})
    assert condition.truth(Facts(arguments={"it": given})) is expected
    assert condition.truth(NO_FACTS) is OPEN


@pytest.mark.parametrize(
    ("path", "arguments", "expected"),
    [
        ("a.b", {"a": {"b": 5}}, YES),
        ("a.b", {"a": {}}, NO),
        ("a.b", {"a": None}, NO),
        ("a.b", {}, NO),
        ("a.b", {"a": 5}, OPEN),
        ("a.*", {"a": [5, 5]}, YES),
        ("a.*", {"a": [1, 2]}, NO),
        ("a.*", {"a": [5, 1]}, OPEN),
        ("a.*", {"a": []}, NO),
        ("a.*", {"a": {"x": 5, "y": 5}}, YES),
        ("a.*", {"a": 5}, OPEN),
        ("a.*.p", {"a": [{"p": 5}, {"p": 5}]}, YES),
        ("a.*.p", {"a": [{"p": 5}, {}]}, OPEN),
        ("a.*.p", {"a": [{"p": 5}, 7]}, OPEN),
        ("a.*", {"a": [5] * (MAX_ELEMENTS + 1)}, OPEN),
        (".".join("a" * 16), deep(64), OPEN),
    ],
)
def test_path_of_an_argument(path: str, arguments: Any, expected: Truth) -> None:
    (condition,) = conditions({f"argument.{path}": "5"})
    assert condition.truth(Facts(arguments=arguments)) is expected


def at(hour: int, minute: int = 0, month: int = 1, day: int = 15) -> int:
    return int(datetime(2026, month, day, hour, minute, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("written", "at_s", "expected"),
    [
        ("08:00-18:00 UTC", at(8), YES),
        ("08:00-18:00 UTC", at(17, 59), YES),
        ("08:00-18:00 UTC", at(18), NO),
        ("outside 08:00-18:00 UTC", at(18), YES),
        ("outside  08:00 - 18:00  UTC", at(9), NO),
        ("22:00-06:00 UTC", at(23), YES),
        ("22:00-06:00 UTC", at(5, 59), YES),
        ("22:00-06:00 UTC", at(6), NO),
        ("00:00-24:00 UTC", at(23, 59), YES),
        ("08:00-18:00 Europe/Berlin", at(7), YES),
        ("08:00-18:00 Europe/Berlin", at(6, month=7), YES),
        # The clock goes from 02:00 to 03:00 on 29 March: 02:30 does not exist, and 01:30 UTC is 03:30.
        ("02:00-03:00 Europe/Berlin", at(1, 30, month=3, day=29), NO),
        ("03:00-04:00 Europe/Berlin", at(1, 30, month=3, day=29), YES),
        # On 25 October 02:30 exists twice.
        ("02:00-03:00 Europe/Berlin", at(0, 30, month=10, day=25), YES),
        ("02:00-03:00 Europe/Berlin", at(1, 30, month=10, day=25), YES),
        (["08:00-09:00 UTC", "20:00-21:00 UTC"], at(20), YES),
        ({"not": "08:00-18:00 UTC"}, at(7), YES),
    ],
)
def test_condition_on_the_time(written: Any, at_s: int, expected: Truth) -> None:
    (condition,) = conditions({"time": written})
    assert condition.truth(Facts(at_s=at_s)) is expected


KNOWN = Facts(
    kind=PatternKind.TOOL,
    server="files",
    name="drop",
    tags=frozenset({"prod", "eu"}),
    risk=Risk.UNDECLARED,
    scope="default",
    principal="acme:ann",
    token_id="ann",
    roles=frozenset({"intern"}),
    from_script=True,
    client="cursor",
    generation=Generation.STATELESS,
    at_s=at(12),
    arguments={"a": 1},
)


@pytest.mark.parametrize(
    ("fact", "met_by", "not_met_by"),
    [
        ("server", "file*", "mail"),
        ("tool", ["x", "drop"], {"not": "d*"}),
        ("kind", "tool", "resource"),
        ("tags", "prod", "us"),
        ("risk", ">= undeclared", "> undeclared"),
        ("risk", "<= undeclared", "< undeclared"),
        ("risk", ["reads", "undeclared"], "destructive"),
        ("scope", "default", {"equals": "def*"}),
        ("caller", "acme:*", "other:*"),
        ("token", "ann", "bob"),
        ("role", "int*", {"not": "intern"}),
        ("from_script", "true", "no"),
        ("client", {"glob": "cur*"}, "claude"),
        ("generation", "2026-07-28", "2025-11-25"),
        ("time", "11:00-13:00 UTC", "outside 11:00-13:00 UTC"),
        ("argument.a", "1", "2"),
    ],
)
def test_condition_on_each_fact(fact: str, met_by: Any, not_met_by: Any) -> None:
    assert met(conditions({fact: met_by}), KNOWN) is YES
    assert met(conditions({fact: not_met_by}), KNOWN) is NO
    assert met(conditions({fact: met_by, "argument.a": "2"}), KNOWN) is NO, "all must be met"
    assert met(conditions({fact: met_by}), NO_FACTS) is OPEN


def test_condition_on_the_tenant() -> None:
    from taskgate.core.identity.identity import principal_name

    (condition,) = conditions({"tenant": "acme"})
    found = [condition.truth(Facts(principal=name)) for name in (principal_name("acme", "ann"), "ann")]
    assert [*found, condition.truth(NO_FACTS)] == [YES, NO, OPEN]


def test_every_fact_has_a_condition_in_these_tests() -> None:
    tested = {"tenant", *(case[0].partition(".")[0] for case in test_condition_on_each_fact.pytestmark[0].args[1])}
    assert tested == set(FACTS)


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ({"rol": "x"}, "rol: there is no such fact (known: server, tool,"),
        ({"argument": "x"}, "write the path of the argument"),
        ({"role.x": "x"}, "write role without a path"),
        ({"argument.a..b": "x"}, "separated by single dots"),
        ({f"argument.{'.'.join('a' * 17)}": "x"}, "1 to 16 names"),
        ({"risk": "danger"}, "not one of reads, writes, undeclared, destructive"),
        ({"risk": "< reads"}, "is never met"),
        ({"generation": "2024-11-05"}, "not one of 2025-11-25, 2026-07-28"),
        ({"time": "8-18"}, "not a time of day with a zone"),
        ({"time": "08:00-18:00"}, "not a time of day with a zone"),
        ({"time": "08:00-08:00 UTC"}, "begins when it ends"),
        ({"time": "08:61-18:00 UTC"}, "not a time between"),
        ({"time": "24:00-25:00 UTC"}, "not a time between"),
        ({"time": "08:00-18:00 Mars/Base"}, "not a known time zone"),
        ({"time": "08:00-18:00 ../etc"}, "not a known time zone"),
        ({"role": ""}, "is empty"),
        ({"client": "> 5"}, "compares a text with a number"),
        ({"role": "[x"}, "role: "),
        ({"role": {"glob": "x"}}, "'glob' is not one of one_of, not"),
        ({"role": {"not": "x", "one_of": []}}, "exactly one of"),
        ({"role": {"one_of": "x"}}, "one_of must be a list"),
        ({"role": []}, "1 to 1000 values"),
        ({"role": ["x"] * (MAX_CHOICES + 1)}, "1 to 1000 values"),
        ({"role": None}, "must be a text, a list of texts, or a map"),
        ({"argument.a": "> many"}, "'many' is not a number"),
        ({"argument.a": "> inf"}, "'inf' is not a number"),
        ({"argument.a": "5..1"}, "begins after its end"),
        ({"argument.a": {"length": "long"}}, "is not a length"),
        ({"argument.a": {"equals": ["x"]}}, "equals must be a text"),
        ({"argument.a": {"present": "perhaps"}}, "is not true or false"),
        ({"from_script": "perhaps"}, "is not true or false"),
    ],
)
def test_mistake_is_named_with_its_fact(when: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r".") as problem:
        conditions(when)
    assert words in str(problem.value)
    assert str(problem.value).startswith(next(iter(when))[:20])


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({"argument.a": "> 5"}, "argument.a > 5"),
        ({"argument.a": ">= 5.5"}, "argument.a >= 5.5"),
        ({"argument.a": "< 5"}, "argument.a < 5"),
        ({"argument.a": "<= 5"}, "argument.a <= 5"),
        ({"argument.a": "1..5"}, "argument.a is in 1..5"),
        ({"argument.a": {"length": "> 5"}}, "argument.a has a length > 5"),
        ({"argument.a": {"length": "1..5"}}, "argument.a has a length that is in 1..5"),
        ({"argument.a": {"present": "true"}}, "argument.a is given"),
        ({"argument.a": {"present": "false"}}, "argument.a is not given"),
        ({"argument.a": {"not": "> 5"}}, "argument.a is not > 5"),
        ({"role": {"not": "a*"}}, "role does not match a*"),
        ({"role": {"not": "a"}}, "role is not a"),
        ({"role": {"not": ["a", "b*"]}}, "role is not such that it is a or matches b*"),
        ({"risk": ">= undeclared", "kind": "tool"}, "risk >= undeclared and kind is tool"),
        ({"time": "outside 08:00-18:00 UTC"}, "time is outside 08:00-18:00 UTC"),
    ],
)
def test_phrase_of_conditions(when: dict[str, Any], expected: str) -> None:
    assert phrase(conditions(when)) == expected


def test_plain_values_of_facts_omit_what_is_not_known() -> None:
    assert plain_facts(["risk", "tags", "client", "time"], KNOWN) == {
        "risk": "undeclared",
        "tags": ["eu", "prod"],
        "client": "cursor",
        "time": at(12),
    }
    assert plain_facts(["risk", "from_script"], Facts(from_script=False)) == {"from_script": False}


CHOICES = ["a", "b*", "*c", "d*e", "5", "5.0", "7", "true", "null", "> 100", {"not": "x*"}, {"length": "2"}]
GIVEN = ["a", "bx", "xc", "dxe", "5", "x", "xy", 5, 5.0, 6, 7, 200, True, False, None, [], [1, 2], {}, "x" * 70_000]


@given(st.lists(st.sampled_from(CHOICES), min_size=1, max_size=4), st.sampled_from([*GIVEN, MISSING]))
def test_one_of_several_is_met_if_any_of_them_is(several: list[Any], value: Any) -> None:
    (whole,), parts = conditions({"argument.a": several}), [conditions({"argument.a": each})[0] for each in several]
    assert whole.requirement.truth(value) is max(part.requirement.truth(value) for part in parts)
    assert whole == conditions({"argument.a": several})[0]


@pytest.mark.parametrize("choices", [[str(n) for n in range(MAX_CHOICES)], [f"name{n}*" for n in range(MAX_CHOICES)]])
@pytest.mark.parametrize("element", ["y", 5000])
def test_many_choices_and_many_elements_take_little_time(choices: list[str], element: Any) -> None:
    when, facts = conditions({"argument.a.*": choices}), Facts(arguments={"a": [element] * 2_000})
    assert least_cpu(lambda: met(when, facts)) < PAUSE_S


@pytest.mark.parametrize("text", ["." * 20_000 + "x", "1" * 20_000 + "..", "1." * 10_000])
def test_a_long_text_is_no_range_and_is_read_quickly(text: str) -> None:
    assert least_cpu(lambda: conditions({"argument.a": text})) < PAUSE_S
    (found,) = conditions({"argument.a": text})
    assert found.truth(Facts(arguments={"a": text})) is YES


@pytest.mark.parametrize(
    ("several", "value", "expected"),
    [
        (["a", "5"], MISSING, NO),
        (["a", "null"], None, YES),
        (["a", "b*"], None, NO),
        (["true", "x"], True, YES),
        (["true", "x"], False, NO),
        (["true", "x*"], False, OPEN),
        (["5", "x"], 5.0, YES),
        (["6", "x"], 5, NO),
        (["6", "x*"], 5, OPEN),
        (["6", "x"], [5], OPEN),
        (["x*", "y*"], {}, OPEN),
        (["> 3", "1..2"], [5], OPEN),
        (["> 3", "1..2"], 5, YES),
        (["> 3", "1..2"], "5", OPEN),
        (["a", "b*"], "bc", YES),
        (["a", "b*"], "c", NO),
        (["a", "b"], "c" * (LONGEST_TEXT + 1), NO),
        (["a", "b*"], "c" * (LONGEST_TEXT + 1), OPEN),
    ],
)
def test_one_of_several_values_of_each_type(several: list[Any], value: Any, expected: Truth) -> None:
    (condition,) = conditions({"argument.a": several})
    assert condition.requirement.truth(value) is expected


def test_equal_lists_of_values_are_equal() -> None:
    one, again, other = (conditions({"argument.a": each})[0].requirement for each in (["a", "b*"], ["a", "b*"], ["a"]))
    assert (one == again, one != again, one == other, one != other) == (True, False, False, True)
    assert len({one, again, other}) == 2
    assert one != "a"
