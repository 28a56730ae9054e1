"""The strict parser and the digest: what is refused, and which values are equal."""

from __future__ import annotations

import json
import random
from typing import Any
from unicodedata import combining, normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core import wire
from taskgate.core.digest import digest, digest_of_bytes, digest_of_json
from taskgate.core.strict_json import (
    AmbiguousJson,
    JsonLimits,
    canonical,
    check,
    is_unambiguous_ascii,
    is_unambiguous_json,
    parse_strict,
    read_compact,
)
from taskgate.core.text.confusables import (
    first_confusable,
    fold,
    limit_combining_marks,
    lookalike_member,
    lookalike_property,
)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1,"a":2}',
        b'{"a":1,"A":2}',
        b'{"x":{"amount":5,"Amount":500}}',
        '{"amount":5,"ａmount":500}',
        '{"ſ":1,"s":2}',
        '{"K":1,"k":2}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e400}',
        b'{"a":-1e400}',
        b'{"a":0.1000000000000000055}',
        b'{"a":9007199254740993.0}',
        b'{"a":"\\ud800"}',
        b'{"\\udfff":1,"b":2}',
        b'{"a":"\xff"}',
        b"",
        b"{",
        b"{'a':1}",
        b"[1,]",
        b'{"a":1} x',
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b"[" * 65 + b"]" * 65,
    ],
)
def test_ambiguous_json_is_refused(raw: bytes | str) -> None:
    with pytest.raises(AmbiguousJson):
        parse_strict(raw)


def test_unambiguous_json_is_read_exactly() -> None:
    raw = '{"a":[1,2.5,-0.0,1e3,true,null,"ä😀"],"big":123456789012345678901234567890,"n":{"x":{}}}'
    assert parse_strict(raw) == {
        "a": [1, 2.5, -0.0, 1000.0, True, None, "ä😀"],
        "big": 123456789012345678901234567890,
        "n": {"x": {}},
    }
    assert parse_strict(b"[" * 64 + b"]" * 64) is not None


def test_sizes_have_limits() -> None:
    with pytest.raises(AmbiguousJson, match="more than 3"):
        parse_strict("[1,2,3]", JsonLimits(nodes=3))
    with pytest.raises(AmbiguousJson, match="deeper than 1"):
        parse_strict("[[]]", JsonLimits(depth=1))


@pytest.mark.parametrize(
    "value",
    [{1: "a"}, {"a": float("nan")}, {"a": float("inf")}, "\ud800", {"\ud800": 1}, (1, 2), b"x", {"a": 1, "A": 1}],
)
def test_a_value_that_was_never_json_is_refused(value: Any) -> None:
    with pytest.raises(AmbiguousJson):
        check(value)


def test_the_serialiser_refuses_values_without_json_form() -> None:
    with pytest.raises(AmbiguousJson):
        canonical(float("nan"))
    with pytest.raises(AmbiguousJson):
        canonical("\ud800")


def test_the_digest_is_the_hash_of_sorted_compact_utf8() -> None:
    assert canonical({"b": 1, "a": ["ä", 2.0]}) == '{"a":["ä",2.0],"b":1}'.encode()
    assert digest({}) == digest_of_bytes(b"{}")
    assert digest_of_json('{ "b" : 1, "a":2 }') == digest_of_json(b'{"a":2,"b":1}')
    assert digest({}).startswith("sha256:")


NUMBERS_TO_WRITE = ("1", "-1", "0", "-0", "01", "1.0", "1e2", "1E2", "12345678901234567890123", "NaN", "nan")
TEXTS_TO_WRITE = (
    '""',
    '"a"',
    '"\\u0061"',
    '"\\/"',
    '"/"',
    '"\\n"',
    '"\\u000a"',
    '"\\u001f"',
    '"\x7f"',
    '"é"',
    '"\\u00e9"',
    '"😀"',
)
WAYS_TO_WRITE = st.sampled_from(
    (*NUMBERS_TO_WRITE, *TEXTS_TO_WRITE, '"\\ud83d\\ude00"', '"\\ud800"', "true", "null", "", "{", "tru")
)
KEYS_TO_WRITE = st.sampled_from(['"a"', '"b"', '"é"', '"\\u0061"', '""', '"A"'])
SPACE = st.sampled_from(["", "", "", " "])


def _written_object(members: list[tuple[str, str, str]]) -> str:
    return "{" + ",".join(f"{key}:{space}{value}" for key, space, value in members) + "}"


documents = st.recursive(
    WAYS_TO_WRITE,
    lambda inner: (
        st.lists(st.tuples(KEYS_TO_WRITE, SPACE, inner), max_size=4).map(_written_object)
        | st.lists(inner, max_size=3).map(lambda found: f"[{','.join(found)}]")
    ),
    max_leaves=8,
)


@given(documents)
def test_compact_document_is_read_as_strictly_as_any_other(text: str) -> None:
    found = read_compact(text.encode())
    if found is not None:
        value = wire.parse_strictly(text.encode())
        assert (wire.encode(found.value), found.canonical) == (text.encode(), canonical(value))
        assert found.value == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":1}',
        '{"a":1,"\\u0061":1}',
        '{"a": 1}',
        "[1.0]",
        "[1e2]",
        "[-0]",
        '["\\/"]',
        '["\\ud800"]',
        "[NaN]",
        "{",
    ],
)
def test_document_that_could_be_written_in_another_way_is_not_compact(text: str) -> None:
    assert read_compact(text.encode()) is None


def test_definition_as_servers_write_it_is_compact() -> None:
    raw = '{"name":"a","d":"é😀\\n","i":{"b":[1,-5,true,null,12345678901234567890123],"a":{}}}'.encode()
    found = read_compact(raw)
    assert found is not None
    assert found.canonical == canonical(wire.parse_strictly(raw))


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('ab\u00e9\u03a3\n"')
)
keys = st.sampled_from(["a", "b", "c", "été", "user id"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)


def read_carefully(raw: bytes) -> str | None:
    """The digest by way of the strict reader; None if it refuses."""
    try:
        return digest(parse_strict(raw))
    except AmbiguousJson:
        return None


def read_in_one_step(raw: bytes) -> str | None:
    try:
        return digest_of_json(raw)
    except AmbiguousJson:
        return None


ascii_text = st.text(st.characters(max_codepoint=127))


@given(
    st.dictionaries(ascii_text | st.text(), scalars | ascii_text | st.integers(-(2**70), 2**70) | values, max_size=5),
    st.sampled_from([None, (",", ":")]),
    st.booleans(),
)
def test_the_fast_path_for_plain_objects_gives_the_same_digest(
    value: dict[str, Any], separators: tuple[str, str] | None, ensure_ascii: bool
) -> None:
    raw = json.dumps(value, separators=separators, ensure_ascii=ensure_ascii).encode("utf-8", "replace")
    assert read_in_one_step(raw) == read_carefully(raw)


@given(
    st.lists(st.sampled_from([*'{}:,"aA1-.[] \\', '"a"', '"A"', '"a":1', "1.5", "-0", "null", "\\u0061", "\x01"])).map(
        "".join
    )
)
def test_the_fast_path_accepts_nothing_that_the_strict_parser_refuses(text: str) -> None:
    raw = b"{" + text.encode() + b"}"
    assert read_in_one_step(raw) == read_carefully(raw)


@pytest.mark.parametrize(
    ("raw", "same"),
    [
        (b'{"a":1,"a":2}', None),
        (b'{"a":1,"A":2}', None),
        (b'{"a":":","b":2}', b'{"a":":","b":2}'),
        (b'{"b":":","a":1}', b'{"a":1,"b":":"}'),
        (b'{"b":"{","a":-0}', b'{"a":0,"b":"{"}'),
        (b'{"b":1.50,"a":1}', b'{"a":1,"b":1.5}'),
        (b'{"b":1e16,"a":1}', b'{"a":1,"b":1e+16}'),
        (b'{"a":"\\ud800"}', None),
        (b'{"a":1', None),
        (b'"{"', b'"{"'),
        (b'{ "b" : "\\n", "a" : "\\/" }', b'{"a":"/","b":"\\n"}'),
        (b'{"a":"%b"}' % (b"x" * 5000), b'{"a":"%b"}' % (b"x" * 5000)),
        (b'{"a":%b}' % (b"1" * 4000), b'{"a":%b}' % (b"1" * 4000)),
    ],
)
def test_the_digest_of_odd_objects(raw: bytes, same: bytes | None) -> None:
    assert read_in_one_step(raw) == read_carefully(raw) == (None if same is None else digest_of_bytes(same))


def shuffled(value: Any, order: random.Random) -> Any:
    if isinstance(value, dict):
        members = list(value.items())
        order.shuffle(members)
        return {key: shuffled(item, order) for key, item in members}
    if isinstance(value, list):
        return [shuffled(item, order) for item in value]
    return value


def exact(value: Any) -> str:
    """A text that distinguishes everything that JSON distinguishes, computed independently of the digest."""
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{key!r}:{exact(item)}" for key, item in value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(exact, value)) + "]"
    return f"{type(value).__name__}:{value!r}"


@given(values, st.randoms(use_true_random=False))
def test_the_digest_does_not_depend_on_the_order_of_keys(value: Any, order: random.Random) -> None:
    assert digest(value) == digest(shuffled(value, order))


@given(values, values)
def test_different_values_have_different_digests(one: Any, other: Any) -> None:
    assert (digest(one) == digest(other)) == (exact(one) == exact(other))


@given(values)
def test_reading_back_what_was_written_is_the_identity(value: Any) -> None:
    assert exact(parse_strict(json.dumps(value))) == exact(value)
    assert digest(parse_strict(canonical(value))) == digest(value)


def test_confusable_names_are_found_across_case_and_unicode_forms() -> None:
    assert fold("Straße") == fold("STRASSE")
    assert fold("ﬁle") == fold("FILE")
    assert first_confusable(["a", "b", "a"]) is None
    assert first_confusable(["read", "b", "Read"]) == ("read", "Read")
    assert first_confusable(["lire", "écrire"]) is None


def test_an_argument_that_imitates_a_declared_one_is_found() -> None:
    schema = {"properties": {"amount": {"type": "integer"}}}
    assert lookalike_property({"Amount": 5}, schema) == ("Amount", "amount")
    assert lookalike_property({"amount": 5, "other": 1}, schema) is None
    assert lookalike_property({"Amount": 5}, {}) is None
    twins: dict[str, Any] = {"properties": {"read": {}, "Read": {}}}
    assert lookalike_property({"read": 1, "Read": 2}, twins) is None


def test_a_request_member_that_imitates_a_checked_one_is_found() -> None:
    assert lookalike_member({"name": "a", "arguments": {"Name": 1}, "_meta": {}}) is None
    assert lookalike_member({"name": "a", "cursor": "x"}) is None
    assert lookalike_member({"name": "a", "Name": "drop"}) == ("Name", "name")
    assert lookalike_member({"uri": "a", "\uff35RI": "b"}) == ("\uff35RI", "uri")
    assert lookalike_member({"name": "a", "argument\u017f": {}}) == ("argument\u017f", "arguments")
    assert lookalike_member({"name": "a", "requeststate": "x"}) == ("requeststate", "requestState")
    assert lookalike_member({"ref": {"type": "ref/prompt", "name": "a", "NAME": "b"}}) == ("NAME", "name")
    assert lookalike_member({"ref": {"type": "ref/prompt", "name": "a", "title": "b"}}) is None


def test_a_document_of_too_many_objects_is_refused_before_it_is_read() -> None:
    with pytest.raises(AmbiguousJson, match="more than 3 values"):
        parse_strict(b"[{},{},{},{}]", JsonLimits(nodes=3))


def test_every_character_that_normalizes_to_a_mark_counts_as_one() -> None:
    """Normalization takes quadratic time to sort a long run of marks, also of those that it produces itself."""
    become_marks = [c for c in map(chr, range(0x110000)) if combining(normalize("NFKD", c)[0])]
    assert {"\u0301", "\u0f73", "\uff9e"} < set(become_marks)
    assert [c for c in become_marks if len(limit_combining_marks(f"a{c * 40}")) != 31] == []
    assert len(limit_combining_marks("a" + "\u0301\uff9e" * 40)) == 31


def test_names_that_differ_only_in_combining_marks_are_confusable() -> None:
    pile = "\u0301" * 40
    assert fold(f"a{pile}") == fold(f"a{pile}\u0301")
    assert fold("a\u0301b" + "c" * 40) != fold("ab" + "c" * 40)


def test_different_keys_beyond_ascii_are_not_ambiguous() -> None:
    check({"größe": 1, "länge": 2})


def written_by_the_standard_library(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "value",
    [
        {"b": [1, None, True], "a": {"Z": "x", "y": "</script>"}},
        {"a": 1.5},
        {"a": 1e16},
        {"a": -0.0},
        {"a": 2**70},
        {"a": (1, 2)},
        {"a": 'quote " and \\ and \n'},
        {"ä": "ß", "z": "\u007f"},
        {1: "a"},
        [],
        "text",
    ],
)
def test_canonical_bytes_do_not_depend_on_the_encoder(value: Any) -> None:
    assert canonical(value) == written_by_the_standard_library(value)


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(plain_values)
def test_canonical_bytes_of_any_value_do_not_depend_on_the_encoder(value: Any) -> None:
    assert canonical(value) == written_by_the_standard_library(value)


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "A": 2},
        {"x": [{"amount": 5, "Amount": 500}]},
        {1: "a"},
        {"a": float("nan")},
        {"a": (1,)},
        json.loads("[" * 70 + "]" * 70),
        {"a": list(range(9_000))},
    ],
)
def test_only_the_full_check_decides_about_odd_values(value: Any) -> None:
    assert not is_unambiguous_ascii(value, wire.encode(value))


@pytest.mark.parametrize("value", [{"a": 1, "b": {"A": "Text", "B": [1.5, 1e22, None]}}, {}, [], "x"])
def test_plain_value_needs_no_full_check(value: Any) -> None:
    check(value)
    assert is_unambiguous_ascii(value, wire.encode(value))


def test_bytes_that_are_no_json_are_not_unambiguous() -> None:
    assert not is_unambiguous_ascii({}, b"{")
    assert not is_unambiguous_json(b"{")


def test_bytes_that_are_not_written_again_alike_are_parsed() -> None:
    assert is_unambiguous_json(b'{"a":1,"b":[1.5,true]}')
    for raw in (b'{"a": 1}', b'{"a":1,"a":1}', b'{"a":1e5}', b'{"a":1,"A":1}', b'{"a":[1,{"B":1,"b":1}],"x":1e6}'):
        assert not is_unambiguous_json(raw)
    assert not is_unambiguous_json(b"[" * 70 + b"]" * 70)


names = st.text(alphabet="aAbB", min_size=1, max_size=2)
ascii_values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.floats(0, 9) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=10,
)


@given(ascii_values)
def test_quick_check_accepts_nothing_that_the_full_check_refuses(value: Any) -> None:
    if is_unambiguous_ascii(value, wire.encode(value)):
        check(value)
    else:
        with pytest.raises(AmbiguousJson):
            check(value)
