"""URI templates: the same matches as a backtracking matcher, in time that does not depend on the number of possible matches."""

from __future__ import annotations

import re
from functools import cache

from hypothesis import given
from hypothesis import strategies as st
from tests.harness.cpu_time import PAUSE_S, least_cpu, untraced

from taskgate.core.resource_uri import MAX_URI
from taskgate.core.uri_template import MAX_TEMPLATE, PreparedUri, UriTemplate, first_matching

_pieces = st.lists(st.sampled_from(["a", "b", "/", "-", "{x}", "{+y}", "{z}", "{/w}", "{?q}"]), max_size=7)


def as_pattern(template: str) -> re.Pattern[str]:
    """The meaning, as a regular expression: plain variables stay within a segment."""
    parts = re.split(r"\{([+/?]?)\w\}", template)
    texts = [re.escape(part) if at % 2 == 0 else ("(.*)" if part else "([^/]*)") for at, part in enumerate(parts)]
    return re.compile("".join(texts), re.DOTALL)


@given(_pieces, st.text(alphabet="ab/-", max_size=8))
def test_a_template_matches_what_its_expression_would(pieces: list[str], uri: str) -> None:
    template = "".join(pieces)
    names = re.findall(r"\{\W?(\w)\}", template)
    meant, text = as_pattern(template).fullmatch(uri), PreparedUri(uri)
    assert UriTemplate(template).matches(text) is (meant is not None)
    for at, name in enumerate(names):
        if names.index(name) == at:
            value = meant.group(at + 1) if meant is not None else None
            assert UriTemplate(template).value_of(name, text) == value
            assert list(UriTemplate(template).values_in(name, [uri])) == ([value] if value is not None else [])


def test_an_unknown_variable_has_no_value() -> None:
    assert UriTemplate("note:{x}").value_of("y", PreparedUri("note:1")) is None
    assert list(UriTemplate("note:{x}").values_in("y", ["note:1"])) == []
    assert list(UriTemplate("note:{x:3}/{y*}").values_in("y", ["note:1/2"])) == ["2"]


def test_the_first_template_that_fits_owns_the_uri() -> None:
    templates = [(UriTemplate("file:///{name}"), "one"), (UriTemplate("file:///{+path}"), "two")]
    assert first_matching(templates, "file:///a") == "one"
    assert first_matching(templates, "file:///a/b") == "two"
    assert first_matching(templates, "note:a") is None


@cache
def crowd() -> list[tuple[UriTemplate, int]]:
    with untraced():
        return [(UriTemplate("x://" + "{a}-" * 900 + f"{number}{{b}}"), number) for number in range(300)]


def test_no_template_and_uri_block_the_event_loop() -> None:
    nine = UriTemplate("x://" + "{a}" * 9 + "!")
    many = UriTemplate("x://" + "{a}-" * 1000 + "!")
    mixed = UriTemplate("x://" + "{a}{+b}-/" * 400 + "!")
    for filling in ("a" * 8000, "-" * 8000, "-/" * 4000):
        uri = f"x://{filling}!"
        for template in (nine, many, mixed):
            assert least_cpu(lambda t=template, u=uri: first_matching([(t, "s")], u)) < PAUSE_S  # type: ignore[misc]
            assert least_cpu(lambda t=template, u=uri: list(t.values_in("a", [u] * 50))) < PAUSE_S  # type: ignore[misc]
        assert least_cpu(lambda u=uri: first_matching(crowd(), u)) < PAUSE_S  # type: ignore[misc]
    assert first_matching([(UriTemplate("{+a}"), 1)], "x" * (MAX_URI + 1)) is None
    assert not UriTemplate("{+a}" * MAX_TEMPLATE).matches(PreparedUri("x"))


def test_a_match_that_would_take_too_long_is_not_tried() -> None:
    two = UriTemplate("x://{a}-{b}!")
    long = "x://" + "a" * 8000 + "-b!"
    assert list(two.values_in("b", ["x://c-d!", "x://without!", "x://e-f!"])) == ["d", "f"]
    found = list(two.values_in("b", [long] * 50))
    assert set(found) == {"b"}
    assert 0 < len(found) < 50
    assert first_matching([*crowd(), (UriTemplate("x://{+all}"), 300)], "x://a") is None
    assert first_matching([(UriTemplate("x://{+all}"), 300), *crowd()], "x://a") == 300


def test_a_plain_variable_does_not_match_across_segments() -> None:
    uris = ["file:///a", "file:///a/b", "note:a"]
    assert list(UriTemplate("file:///{name}").values_in("name", uris)) == ["a"]
    assert list(UriTemplate("file:///{+name}").values_in("name", uris)) == ["a", "a/b"]
