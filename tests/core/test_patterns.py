"""The pattern language: truth tables, bad input, and agreement between one pattern and a set of them."""

from __future__ import annotations

import copy
import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.raised import raises_error

from taskgate.core.globs import Glob, PatternError
from taskgate.core.patterns import Pattern, PatternKind, PatternSet


@pytest.mark.parametrize(
    ("pattern", "server", "name", "expected"),
    [
        ("*", "files", "anything", True),
        ("read_*", "files", "read_file", True),
        ("read_*", "files", "Read_file", False),
        ("read_*", "files", "unread_file", False),
        ("*_file", "files", "read_file", True),
        ("r?ad", "files", "read", True),
        ("r?ad", "files", "rad", False),
        ("a*b*c", "files", "a1b2b3c", True),
        ("a*b*c", "files", "a1c", False),
        ("a**b", "files", "ab", True),
        ("ab*ba", "files", "aba", False),
        ("**", "files", "x", True),
        ("*?b*", "files", "ab", True),
        ("*a?b**c", "files", "xaxbyc", True),
        ("[rw]ead", "files", "read", True),
        ("[!rw]ead", "files", "read", False),
        ("[a-f]x", "files", "ex", True),
        ("[a-f]x", "files", "gx", False),
        ("[]]x", "files", "]x", True),
        ("[[]x", "files", "[x", True),
        ("[a-]x", "files", "-x", True),
        ("a.b", "files", "aXb", False),
        ("*", "files", "two\nlines", True),
        ("files:read_*", "files", "read_file", True),
        ("files:read_*", "reports", "read_file", False),
        ("f*:read_*", "files", "read_file", True),
        ("*:ns:tool", "files", "ns:tool", True),
        ("tool:read", "files", "read", True),
    ],
)
def test_what_a_pattern_matches(pattern: str, server: str, name: str, expected: bool) -> None:
    assert Pattern.compile(pattern).matches(server, name) is expected
    assert PatternSet.of([pattern]).matches(server, name) is expected
    assert PatternSet.of([pattern]).for_server(server)(name) is expected


@pytest.mark.parametrize(
    ("pattern", "kind", "server", "name", "expected"),
    [
        ("resource:file:///tmp/*", PatternKind.RESOURCE, "files", "file:///tmp/a/b", True),
        ("resource:file:///tmp/*", PatternKind.TOOL, "files", "file:///tmp/a/b", False),
        ("prompt:greet*", PatternKind.PROMPT, "files", "greeting", True),
        ("files:prompt:greet*", PatternKind.PROMPT, "reports", "greeting", False),
        ("files:resource:*", PatternKind.RESOURCE, "files", "x://y", True),
        ("read_*", PatternKind.PROMPT, "files", "read_me", False),
    ],
)
def test_resources_and_prompts_are_named_by_kind(
    pattern: str, kind: PatternKind, server: str, name: str, expected: bool
) -> None:
    assert Pattern.compile(pattern).matches(server, name, kind) is expected
    assert PatternSet.of([pattern]).for_server(server, kind)(name) is expected


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("", "is empty"),
        (" read", "surrounding spaces"),
        ("re\x00ad", "invisible characters"),
        ("[abc", "never closed"),
        ("[]", "never closed"),
        ("[z-a]", "wrong way round"),
        (":read", "one side of the colon"),
        ("files:", "one side of the colon"),
        ("resource:", "one side of the colon"),
        ("x" * 513, "longer than 512"),
    ],
)
def test_a_bad_pattern_says_what_is_wrong(pattern: str, problem: str) -> None:
    with pytest.raises(PatternError, match=problem) as caught:
        Pattern.compile(pattern)
    assert caught.value.error_type == "bad_pattern"


def test_a_glob_alone_has_the_same_limit() -> None:
    with raises_error("bad_pattern", "512"):
        Glob.compile("x" * 513)


def test_patterns_are_values() -> None:
    assert Pattern.compile("a*") == Pattern.compile("a*")
    assert len({Pattern.compile("a*"), Pattern.compile("a*")}) == 1
    assert PatternSet.of(["a", "a"]) == PatternSet.of(["a"])


def test_sets_of_patterns_are_joined() -> None:
    joined = PatternSet.of(["a", "b"]) | PatternSet.of(["b", "c*"])
    assert [pattern.text for pattern in joined.patterns] == ["a", "b", "c*"]


def test_a_glob_reports_whether_it_is_literal() -> None:
    assert Glob.compile("files").literal
    assert not Glob.compile("files*").literal


@pytest.mark.parametrize(
    ("glob", "example"),
    [
        ("read", "read"),
        ("delete_*", "delete_x"),
        ("?.?", "x.x"),
        ("[a-f]*", "ax"),
        ("[!x]", "0"),
        ("[!x0_ab]y", "!y"),
        ("x[[]1]", "x[1]"),
        ("[!!-~]", None),
    ],
)
def test_example_of_a_glob_is_a_name_that_it_matches(glob: str, example: str | None) -> None:
    found = Glob.compile(glob).example()
    assert found == example
    assert found is None or Glob.compile(glob).matches(found)


def test_an_empty_set_matches_nothing() -> None:
    assert not PatternSet.of([]).matches("files", "read")
    assert not PatternSet.of([]).for_server("files")("read")
    assert not PatternSet.of(["other:*"]).for_server("files")("read")


def test_a_hostile_name_does_not_cost_exponential_time() -> None:
    assert not Pattern.compile("*a" * 40 + "b").matches("s", "a" * 5000)
    assert not Pattern.compile("*a?" * 40 + "b").matches("s", "a" * 5000)


_glob = st.text(st.sampled_from("ab*?.-"), min_size=1, max_size=6).filter(lambda text: not text.startswith(":"))


@given(st.lists(_glob, max_size=6), st.text(st.sampled_from("ab.-"), max_size=8))
def test_a_set_agrees_with_its_patterns_and_with_the_standard_library(globs: list[str], name: str) -> None:
    expected = any(fnmatch.fnmatchcase(name, glob) for glob in globs)
    assert PatternSet.of(globs).matches("s", name) is expected
    assert PatternSet.of(globs).for_server("s")(name) is expected


def test_a_lookalike_is_one_of_the_same_kind_and_server() -> None:
    drop = Pattern.compile("files:drop")
    assert drop.matches_lookalike("files", "DROP")
    assert not drop.matches_lookalike("mail", "DROP")
    assert not drop.matches_lookalike("files", "DROP", PatternKind.PROMPT)


def test_a_character_class_that_case_folding_would_reverse_is_kept() -> None:
    glob = Glob.compile("x[Z-a]")
    assert glob.matches("x_")
    assert glob.lookalike.matches("x_")


@pytest.mark.parametrize(
    ("wide", "narrow", "covered"),
    [
        ("*", "delete_*", True),
        ("delete_*", "delete_file", True),
        ("delete_*", "delete_*", True),
        ("delete_*", "delete_f*_x", True),
        ("*_file", "delete_*_file", True),
        ("a*b*c", "axbyc", True),
        ("a*", "*a", False),
        ("delete_?", "delete_a", True),
        ("delete_?", "delete_[ab]", True),
        ("delete_?", "delete_*", False),
        ("delete_?", "delete_", False),
        ("delete_[ab]", "delete_a", True),
        ("delete_[ab]", "delete_c", False),
        ("delete_[ab]", "delete_?", False),
        ("delete_[ab]", "delete_[ab]", True),
        ("delete_[!ab]", "delete_c", True),
        ("delete_file", "delete_*", False),
        ("delete_file", "delete_files", False),
    ],
)
def test_a_glob_covers_another_if_it_matches_all_of_its_names(wide: str, narrow: str, covered: bool) -> None:
    assert Glob.compile(wide).covers(Glob.compile(narrow)) is covered


def test_glob_with_a_class_gives_the_same_answer_every_time() -> None:
    glob = Glob.compile("read_[a-c]?")
    assert [glob.matches(name) for name in ("read_ax", "read_ax", "read_dx", "read_a\n")] == [True, True, False, True]


def test_globs_and_patterns_are_equal_by_their_texts() -> None:
    assert {Glob.unchecked("a*"), Glob.compile("a*"), Glob.compile("b")} == {Glob.compile("b"), Glob.compile("a*")}
    assert {Pattern.compile("s:a*"), Pattern.compile("a*")} == {Pattern.compile("a*"), Pattern.compile("s:a*")}
    assert Glob.compile("a*") != "a*"
    assert Pattern.compile("a*") != Glob.compile("a*")


def test_patterns_and_globs_with_the_same_text_are_not_unequal() -> None:
    glob, pattern = Glob.unchecked("a*"), Pattern.compile("s:a*")
    assert (glob != copy.copy(glob), glob != Glob.unchecked("b*")) == (False, True)
    assert (pattern != copy.copy(pattern), pattern != Pattern.compile("s:b*")) == (False, True)
