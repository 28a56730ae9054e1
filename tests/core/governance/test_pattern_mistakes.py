"""Patterns that cannot be meant as written are named, with what to write instead."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.governance.pattern_mistakes import MAX_ALTERNATIVES, mistake_in, repairs, taken_apart, write_instead
from taskgate.core.patterns import Pattern, PatternKind

WRONG: dict[str, tuple[str, ...]] = {
    # Regular expressions.
    "delete_.*": ("delete_*",),
    "delete_.+": ("delete_*",),
    ".*delete": ("*delete",),
    "/delete.*/": ("delete*",),
    "/delete/": ("*delete*",),
    "/^delete_/i": ("delete_*",),
    "^x$": ("x",),
    "^delete": ("delete*",),
    "file$": ("*file",),
    "(?i)drop_.*": ("drop_*",),
    "(a|b)": ("a", "b"),
    "(?:read|write)_file": ("read_file", "write_file"),
    "^(delete|drop)_.*$": ("delete_*", "drop_*"),
    "a|b": ("a", "b"),
    "{delete,drop}_*": ("delete_*", "drop_*"),
    "delete_files?$": ("*delete_file*",),
    "delete_file(s)?": ("delete_files", "delete_file"),
    "(ab)+_x": ("*_x",),
    r"delete_\w+": ("delete_*",),
    r"delete_\w": ("delete_?",),
    r"\bdelete\b": ("delete",),
    r"delete\_file": ("delete_file",),
    r"delete\.file": ("delete.file",),
    "[a-z]+_x": ("*_x",),
    "delete_[^a]$": ("*delete_[!a]",),
    "x{2,3}": ("x*",),
    "wipe+": ("wipe*",),
    "delete_.?x": ("delete_*x",),
    "files:delete_.*": ("files:delete_*",),
    "files:prompt:ask_.*": ("files:prompt:ask_*",),
    "resource:^file:///x": ("resource:file:///x*",),
    # Other languages of patterns, and several patterns in one text.
    "delete_%": ("delete_*",),
    "delete_*, drop_*": ("delete_*", "drop_*"),
    "mcp__files__delete_*": ("files:delete_*",),
    "mcp__my_files__delete_*": ("my_files:delete_*",),
    "files:mcp__x__y": ("x:y",),
    # Upper case.
    "Delete_*": ("delete_*",),
    "DELETE_FILE": ("delete_file",),
    "Files:Delete_*": ("Files:delete_*",),
    "prompt:Ask*": ("prompt:ask*",),
    "^Delete_.*": ("delete_*",),
    # Letters that are not ASCII: Cyrillic, full width, a dash, an accent.
    "d\u0435lete_*": ("delete_*",),
    "\uff44rop_*": ("drop_*",),
    "drop\u2013table": ("drop-table",),
    "caf\u00e9_*": ("cafe_*",),
    # No glob can be suggested.
    "!read_*": (),
    "-read_*": (),
    "(a|b)(a|b)(a|b)(a|b)": (),
    "a|b|c|d|e|f|g|h|i": (),
    "delete_(": (),
    "[a|b]_x": (),
    ",": (),
    "\u67e5\u8be2*": (),
}


@pytest.mark.parametrize(("pattern", "instead"), WRONG.items(), ids=ascii)
def test_pattern_that_cannot_be_meant_is_named(pattern: str, instead: tuple[str, ...]) -> None:
    mistake = mistake_in(pattern)
    assert mistake is not None
    assert mistake.what.startswith(f'"{pattern}" ')
    assert mistake.instead == instead


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "delete_*",
        "delete_?",
        "[ab]_x",
        "[!a]*",
        "files:delete_*",
        "f*:x",
        "taskgate:run_script",
        # Names with upper case, and parts of dotted names, that servers have.
        "getUser",
        "getUser*",
        "GetUser",
        "API-post-search",
        "admin.*",
        "admin.users.*",
        "*.*",
        "a/b",
        # URIs contain most characters of a regular expression.
        "resource:file:///A/.*",
        "resource:https://x/?q=(a+b)$",
        "resource:file:///\u67e5",
        # Errors of their own.
        "",
        "[a",
        "x:",
        "^[a",
    ],
)
def test_pattern_that_may_be_meant_is_not_named(pattern: str) -> None:
    assert mistake_in(pattern) is None


def test_a_foreign_letter_is_named() -> None:
    mistake = mistake_in("d\u0435lete_*")
    assert mistake is not None
    assert "CYRILLIC SMALL LETTER IE, U+0435" in mistake.what


def test_hint_lists_all_patterns_that_replace_one() -> None:
    assert write_instead(()) == ""
    assert write_instead(("a",)) == "write a"
    assert write_instead(("a", "b", "c")) == "write a, b and c as 3 patterns"
    mistake = mistake_in("a|b")
    assert mistake is not None
    assert mistake.hint == "write a and b as 2 patterns"


def test_long_pattern_is_shortened_in_the_message() -> None:
    mistake = mistake_in(f"^{'x' * 400}")
    assert mistake is not None
    assert len(mistake.what) < 200


def test_globs_over_other_names_have_fewer_mistakes() -> None:
    assert mistake_in("Tenant_*", PatternKind.RESOURCE) is None
    mistake = mistake_in("^tenant", PatternKind.RESOURCE)
    assert mistake is not None
    assert mistake.instead == ("tenant*",)


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("delete_*", ("", "delete_*")),
        ("files:delete_*", ("files:", "delete_*")),
        ("prompt:ask:x", ("prompt:", "ask:x")),
        ("files:resource:file:///x", ("files:resource:", "file:///x")),
        ("files:x:y", ("files:", "x:y")),
        ("(?:a|b)", ("", "(?:a|b)")),
    ],
)
def test_server_and_kind_are_told_from_the_name(pattern: str, parts: tuple[str, str]) -> None:
    assert taken_apart(pattern) == parts


def test_more_repairs_follow_for_what_only_lists_can_decide() -> None:
    """`delete.*` may be a glob over dotted names."""
    assert ("delete*",) in list(repairs("delete.*"))
    assert ("delete-file",) in list(repairs("delete_file"))
    assert ("getuser",) in list(repairs("getUser"))


def test_many_groups_of_alternatives_are_cheap() -> None:
    """Written out, they would be 8,192 patterns."""
    before = process_time()
    mistake = mistake_in("(a|b)" * 13)
    assert process_time() - before < 0.2
    assert mistake is not None
    assert mistake.instead == ()


@given(st.text(st.sampled_from("aZ_.*+?()[]{}|^$\\/,%:-9\u0435!"), max_size=20))
def test_every_repair_is_a_valid_pattern(text: str) -> None:
    mistake = mistake_in(text)
    if mistake is None:
        return
    for patterns in repairs(text):
        assert len(patterns) <= max(MAX_ALTERNATIVES, text.count(",") + 1)
        for each in patterns:
            Pattern.compile(each)
    assert all(mistake_in(each) is None for each in mistake.instead)
