"""A rule below one that covers it never decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core import globs
from taskgate.core.globs import Glob
from taskgate.core.governance.rules import OrderedRule, unreachable
from taskgate.core.patterns import Pattern


@pytest.mark.parametrize(
    ("earlier", "later", "is_unreachable"),
    [
        (("delete_*", None), ("delete_file", None), True),
        (("delete_*", None), ("delete_file", "files"), True),
        (("delete_*", "files"), ("delete_file", None), False),
        (("delete_*", "files"), ("delete_file", "files"), True),
        (("delete_*", "files"), ("files:delete_file", None), True),
        (("files:*", None), ("delete_file", "files"), True),
        (("files:*", None), ("delete_file", "bank"), False),
        (("f*:*", None), ("files:delete_file", None), True),
        (("*", None), ("resource:file:///*", None), False),
        (("resource:*", None), ("resource:file:///a", None), True),
    ],
)
def test_a_rule_that_an_earlier_one_covers_is_unreachable(
    earlier: tuple[str, str | None], later: tuple[str, str | None], is_unreachable: bool
) -> None:
    rules = [
        OrderedRule(number, Pattern.compile(text), server) for number, (text, server) in enumerate((earlier, later))
    ]
    assert unreachable(rules) == ({1: 0} if is_unreachable else {})


def test_an_unreachable_rule_is_reported_with_the_first_that_covers_it() -> None:
    patterns = [Pattern.compile(text) for text in ("*", "delete_*", "delete_file")]
    assert unreachable([OrderedRule(number, pattern) for number, pattern in enumerate(patterns)]) == {1: 0, 2: 0}


GLOB = st.lists(st.sampled_from(["a", "b", "ab", "*", "?", "[ab]", "[!a]", "[]a]"]), min_size=1, max_size=5).map(
    "".join
)


@given(GLOB, GLOB)
def test_literal_part_decides_no_cover_wrongly(wide: str, narrow: str) -> None:
    """Searching for the literal part first gives the same result as comparing all parts."""
    compared = globs._covers(globs._GLOB_TOKENS.findall(wide), globs._GLOB_TOKENS.findall(narrow))
    assert Glob.compile(wide).covers(Glob.compile(narrow)) is compared


def test_a_rule_with_conditions_covers_only_rules_with_the_same_conditions() -> None:
    every, one = Pattern.compile("*"), Pattern.compile("delete_file")
    rules = [OrderedRule(0, every, conditions="a"), OrderedRule(1, one, conditions="a"), OrderedRule(2, one)]
    assert unreachable(rules) == {1: 0}
    assert unreachable([OrderedRule(0, every), OrderedRule(1, one, conditions="a")]) == {1: 0}
