"""The URIs in a result: found in every place where callers receive one, limited in number, and never an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from tests.harness.any_json import any_json

from taskgate.core.catalog.links import MAX_LINKS, MAX_URI, may_name_uris, scheme_of, uris_between, uris_in

LINK = {"type": "resource_link", "uri": "a://1", "name": "one"}
EMBEDDED = {"type": "resource", "resource": {"uri": "a://2", "text": "x"}}


@pytest.mark.parametrize(
    ("result", "uris"),
    [
        ({"content": [LINK, EMBEDDED, {"type": "text", "text": '"uri"'}, LINK]}, ["a://1", "a://2"]),
        ({"messages": [{"role": "user", "content": LINK}, {"content": [EMBEDDED]}, 5]}, ["a://1", "a://2"]),
        ({"contents": [{"uri": "a://3"}, {"uri": 5}, 7]}, ["a://3"]),
        ({"structuredContent": {"uri": "a://4"}, "content": "no list"}, []),
        ({"content": [{"type": "resource_link", "uri": "x" * (MAX_URI + 1)}, {"type": "resource", "uri": "b"}]}, []),
        (["uri"], []),
    ],
)
def test_links_are_found_in_every_field_that_may_contain_them(result: Any, uris: list[str]) -> None:
    assert uris_in(json.dumps(result).encode()) == uris


def test_a_result_without_links_is_not_parsed_and_a_broken_one_has_none() -> None:
    assert uris_in(b"not json at all") == []
    assert uris_in(b'not json with "uri"') == []


def test_the_number_of_links_is_limited() -> None:
    links = [{"type": "resource_link", "uri": f"a://{number}"} for number in range(MAX_LINKS + 5)]
    assert len(uris_in(json.dumps({"content": links}).encode())) == MAX_LINKS


@given(any_json(("content", "messages", "contents", "type", "resource_link", "resource", "uri")))
def test_any_result_is_searched_without_an_exception(value: Any) -> None:
    assert all(isinstance(uri, str) for uri in uris_in(json.dumps(value).encode()))


@pytest.mark.parametrize(
    ("uri", "scheme"),
    [
        ("Notes://x", "notes"),
        ("a+b-c.1:x", "a+b-c.1"),
        ("{x}://y", None),
        ("no colon", None),
        (":x", None),
        ("1a:x", None),
    ],
)
def test_a_scheme_ends_at_the_colon(uri: str, scheme: str | None) -> None:
    assert scheme_of(uri) == scheme


def test_uris_of_a_part_of_a_result_are_found_by_where_they_begin() -> None:
    result = b'{"content":[{"uri":"a://1"},{"uri" : "b://\\u0032"},{"uri":"bad\\q"},{"uri":7}]}'
    second = result.index(b'"uri" ')
    assert uris_between(result, 0, len(result)) == ["a://1", "b://2"]
    assert uris_between(result, 0, second) == ["a://1"]
    assert uris_between(result, second, len(result)) == ["b://2"]
    assert uris_between(b'{"uri":"%b"}' % (b"x" * (MAX_URI + 1)), 0, 20) == []


@given(any_json(("content", "messages", "contents", "type", "resource_link", "resource", "uri")))
def test_result_that_cannot_contain_a_uri_has_none(value: Any) -> None:
    for result in (value, {"content": [LINK, value]}, {"content": value}, {"contents": value}):
        if isinstance(result, dict) and not may_name_uris(result):
            assert uris_in(json.dumps(result).encode()) == []


def test_text_names_no_uri_and_links_do() -> None:
    text = {"type": "text", "text": '"uri"'}
    assert not may_name_uris({"content": [text], "isError": False})
    assert may_name_uris({"content": [text, LINK]})
    assert may_name_uris({"content": [EMBEDDED]})
