"""Untrusted text: invisible and direction-changing characters are shown as escapes."""

from __future__ import annotations

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.text.plain_text import html_escaped, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é", "plain é"),
        ("a\nb", "a\nb"),
        ("a\tb", "a\\u0009b"),
        ("\x1b[2J", "\\u001b[2J"),
        ("pay \u202e001", "pay \\u202e001"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("tag \U000e0041", "tag \\U000e0041"),
        ("filled\u3164\u2800\u180b", "filled\\u3164\\u2800\\u180b"),
        ("❤\ufe0f x\ufe0f", "❤\ufe0f x\\ufe0f"),
    ],
)
def test_invisible_characters_are_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_log_line_stays_one_line() -> None:
    assert visible("a\nb", keep="") == "a\\u000ab"


@given(st.text(alphabet="&<>\"'a;é"))
def test_html_is_escaped_as_by_the_standard_library(text: str) -> None:
    assert html_escaped(text) == html.escape(text)
