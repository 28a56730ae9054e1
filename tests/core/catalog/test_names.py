"""Naming: each wire name belongs to one pair of server and tool; ambiguous names are refused on both sides."""

from __future__ import annotations

import base64
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.catalog.names import (
    MAX_WIRE_NAME,
    Collision,
    CollisionReason,
    NameStyle,
    NameTable,
    alike_names,
    wire_name,
)
from taskgate.core.catalog.own_tool_names import RESERVED_NAMES

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,48}")


def encode_alias(server: str, name: str) -> str:
    """The reversible name, `mcp__<base64>__<base64>`, as callers write it."""
    parts = (base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).rstrip(b"=") for text in (server, name))
    return "mcp__" + b"__".join(parts).decode("ascii")


@pytest.mark.parametrize(
    ("server", "name", "wire"),
    [
        ("files", "read_file", "files__read_file"),
        ("my-server", "Do-It", "my-server__Do-It"),
        ("a", "_b", "a___b"),
        ("a", "b__c", "a__b__c"),
        ("s" * 20, "t" * 26, "s" * 20 + "__" + "t" * 26),
    ],
)
def test_an_ordinary_pair_keeps_its_spelling(server: str, name: str, wire: str) -> None:
    assert wire_name(server, name) == wire


@pytest.mark.parametrize(
    ("server", "name", "start"),
    [
        ("files", "read file", "files__read_file_"),
        ("files", "a.b", "files__a_b_"),
        ("acme_", "status", "acme___status_"),
        ("a__b", "c", "a__b__c_"),
        ("_a", "c", "_a__c_"),
        ("", "", "___"),
        ("files", "x" * 80, "files__xxxx"),
        ("s" * 60, "t" * 60, "s" * 16 + "__tttt"),
        ("s" * 60, "get", "s" * 38 + "__get_"),
    ],
)
def test_a_changed_or_cut_name_ends_in_a_digest_of_the_pair(server: str, name: str, start: str) -> None:
    wire = wire_name(server, name)
    assert wire.startswith(start)
    assert re.search(r"_[a-z2-7]{4}$", wire)
    assert LEGAL.fullmatch(wire)
    assert wire == wire_name(server, name)


def test_names_that_differ_only_past_the_limit_stay_apart() -> None:
    assert wire_name("files", "x" * 80 + "a") != wire_name("files", "x" * 80 + "b")


def test_the_table_goes_both_ways() -> None:
    table = NameTable.build([("a", "x"), ("b", "x")], NameStyle.PREFIXED)
    assert table.to_wire == {("a", "x"): "a__x", ("b", "x"): "b__x"}
    assert table.from_wire["b__x"] == ("b", "x")
    assert table.refused == ()
    assert table.resolve("a__x") == ("a", "x")
    assert table.resolve("a__y") is None


def test_plain_names_are_the_upstreams_own() -> None:
    table = NameTable.build([("a", "Read file!"), ("b", "write")], NameStyle.PLAIN)
    assert table.resolve("Read file!") == ("a", "Read file!")
    assert table.resolve("write") == ("b", "write")


def test_a_pair_listed_twice_is_one_pair() -> None:
    assert NameTable.build([("a", "x"), ("a", "x")]).to_wire == {("a", "x"): "a__x"}


@pytest.mark.parametrize(
    ("entries", "style", "reason"),
    [
        ([("a", "x"), ("b", "x")], NameStyle.PLAIN, CollisionReason.SAME_NAME),
        ([("a", "x"), ("b", "X")], NameStyle.PLAIN, CollisionReason.CONFUSABLE),
        ([("A", "read"), ("a", "READ")], NameStyle.PREFIXED, CollisionReason.CONFUSABLE),
        ([("A", "read"), ("a", "ｒｅａｄ")], NameStyle.PREFIXED, CollisionReason.CONFUSABLE),
        ([("a", "read"), ("a", "READ"), ("b", "Read")], NameStyle.PLAIN, CollisionReason.CONFUSABLE),
        ([("Files", "read"), ("files", "read")], NameStyle.PREFIXED, CollisionReason.CONFUSABLE),
        ([("A", "straße"), ("a", "strasse")], NameStyle.PREFIXED, CollisionReason.CONFUSABLE),
    ],
)
def test_confusable_names_are_both_refused(
    entries: list[tuple[str, str]], style: NameStyle, reason: CollisionReason
) -> None:
    table = NameTable.build([*entries, ("other", "fine")], style)
    assert table.refused[0].reason is reason
    assert set(table.refused[0].pairs) == set(entries)
    assert set(table.to_wire) == {("other", "fine")}
    assert all(repr(name) in str(table.refused[0]) for _, name in entries)


@pytest.mark.parametrize("style", list(NameStyle))
@pytest.mark.parametrize("other", ["READ", "ｒｅａｄ", "re\u200bad", "Read"])
def test_names_of_one_server_that_look_alike_are_served(other: str, style: NameStyle) -> None:
    table = NameTable.build([("a", "read"), ("a", other), ("b", "fine")], style)
    assert table.refused == ()
    assert table.resolve(table.to_wire["a", "read"]) == ("a", "read")
    assert table.resolve(table.to_wire["a", other]) == ("a", other)


def test_names_that_look_alike_are_found_with_the_others() -> None:
    assert alike_names(["read", "write"]) == {}
    assert alike_names(["read", "READ", "write", "ｒｅａｄ", "read"]) == {
        "read": ("READ", "ｒｅａｄ"),
        "READ": ("read", "ｒｅａｄ"),
        "ｒｅａｄ": ("read", "READ"),
    }


def test_a_crafted_tool_cannot_take_the_digest_name_of_another() -> None:
    taken = wire_name("a", "read file")
    table = NameTable.build([("a", "read file"), ("a", taken.removeprefix("a__"))])
    assert table.to_wire == {}
    assert table.resolve(taken) is None


@pytest.mark.parametrize("name", ["get_task", "GET_TASK", "search_tools"])
def test_the_gateways_own_names_are_refused_in_plain_style_only(name: str) -> None:
    plain = NameTable.build([("a", name)], NameStyle.PLAIN)
    assert plain.to_wire == {}
    assert plain.refused == (Collision(name, (("a", name),), CollisionReason.RESERVED),)
    assert "prefixed" in str(plain.refused[0])
    assert NameTable.build([("a", name)], NameStyle.PREFIXED).refused == ()


def test_reserved_names_can_be_given_up_where_the_gateway_has_no_tools_of_its_own() -> None:
    assert NameTable.build([("a", "get_task")], NameStyle.PLAIN, reserved=()).resolve("get_task") == ("a", "get_task")
    assert "await_activity" in RESERVED_NAMES


def test_both_aliases_are_accepted() -> None:
    table = NameTable.build([("my.server", "do.it"), ("files", "räume")])
    assert table.resolve("mcp.my.server.do.it") == ("my.server", "do.it")
    assert table.resolve("mcp.files.räume") == ("files", "räume")
    for pair in table.to_wire:
        assert table.resolve(encode_alias(*pair)) == pair


@pytest.mark.parametrize(
    "wire",
    [
        "mcp__",
        "mcp__a",
        "mcp____",
        "mcp__!!__YQ",
        "mcp__YR__YQ",
        "mcp__gA__YQ",
        "mcp.",
        "mcp.x",
        "mcp..x",
        "mcp.x.",
        "x.files.read",
    ],
)
def test_a_malformed_or_uncanonical_alias_is_refused(wire: str) -> None:
    assert NameTable.build([("a", "a"), ("files", "read")]).resolve(wire) is None


def test_an_ambiguous_alias_is_refused() -> None:
    table = NameTable.build([("a.b", "c"), ("a", "b.c")])
    assert table.resolve("mcp.a.b.c") is None
    assert table.resolve("a__b_c_" + table.to_wire["a", "b.c"][-4:]) == ("a", "b.c")


def test_an_overlong_alias_is_refused_without_parsing() -> None:
    assert NameTable.build([("a", "x")]).resolve("mcp." + "a." * 2000) is None


def test_a_name_equal_to_the_alias_of_another_refuses_both() -> None:
    hijack = encode_alias("files", "read").removeprefix("mcp__")
    table = NameTable.build([("files", "read"), ("mcp", hijack)])
    assert table.to_wire == {}
    assert table.refused[0].reason is CollisionReason.ALIAS
    assert "alias" in str(table.refused[0])


def _crafted_pairs() -> list[tuple[str, str]]:
    """Pairs made to collide: separators at the boundaries, case, width, invisible characters, truncation, aliases."""
    servers = [
        "acme",
        "acme_",
        "_acme",
        "acme__x",
        "ACME",
        "ａｃｍｅ",
        "ac\u200dme",
        "mcp",
        "acme.x",
        "acme-x",
        "a" * 47,
        "a" * 48,
    ]
    tools = [
        *(
            "status",
            "_status",
            "__status",
            "x__status",
            "STATUS",
            "ｓｔａｔｕｓ",
            "sta\u200btus",
            "status ",
            "sta tus",
            "sta_tus",
        ),
        *("get_task", "s" * 60, "s" * 61, "", "_", "x", encode_alias("acme", "status").removeprefix("mcp__")),
        *(
            "x.status",
            "status\u202e",
            "ﬁle",
            "file",
            "İ",
            "i̇",
            "ſtatus",
            "K",
            "K",
            "ß",
            "ss",
            "a" * 47,
            "mcp__a__b",
            "mcp.acme.status",
        ),
    ]
    pairs = list(itertools.product(servers, tools))
    crafted = [(server, wire_name(server, name).partition("__")[2]) for server, name in pairs]
    return list(dict.fromkeys(pairs + crafted))[:500]


@pytest.mark.parametrize("style", list(NameStyle))
def test_five_hundred_crafted_pairs_each_map_to_one_pair_or_are_refused(style: NameStyle) -> None:
    pairs = _crafted_pairs()
    assert len(pairs) == 500
    _one_name_one_pair(pairs, style)
    for left, right in itertools.combinations(pairs[::8], 2):
        _one_name_one_pair([left, right], style)


def _one_name_one_pair(pairs: list[tuple[str, str]], style: NameStyle) -> None:
    table = NameTable.build(pairs, style)
    refused = {pair for collision in table.refused for pair in collision.pairs}
    assert refused | set(table.to_wire) == set(pairs)
    assert not refused & set(table.to_wire)
    owners: dict[str, set[str]] = {}
    for wire, (server, _) in table.from_wire.items():
        owners.setdefault(wire.casefold(), set()).add(server)
    assert all(len(servers) == 1 for servers in owners.values())
    for pair, wire in table.to_wire.items():
        assert table.resolve(wire) == pair
        assert table.from_wire[wire] == pair
        assert table.resolve(encode_alias(*pair)) in (pair, None)
        if style is NameStyle.PREFIXED:
            assert LEGAL.fullmatch(wire)
            assert len(wire) <= MAX_WIRE_NAME


_word = st.text(st.sampled_from("abAB_-. ａ\u200bßſ0é"), max_size=6) | st.text(max_size=60)


@given(st.lists(st.tuples(_word, _word), max_size=12), st.sampled_from(NameStyle))
def test_a_name_maps_to_one_pair_or_is_refused(pairs: list[tuple[str, str]], style: NameStyle) -> None:
    _one_name_one_pair(pairs, style)


@given(st.lists(st.tuples(_word, _word), max_size=10))
def test_the_order_of_listing_changes_no_name(pairs: list[tuple[str, str]]) -> None:
    there = NameTable.build(pairs)
    back = NameTable.build(reversed(pairs))
    assert dict(there.to_wire) == dict(back.to_wire)


def test_a_prefix_replaces_the_servers_id_and_cannot_take_another_name() -> None:
    table = NameTable.build([("one", "read"), ("two", "read")], prefixes={"one": "fs"})
    assert table.to_wire == {("one", "read"): "fs__read", ("two", "read"): "two__read"}
    assert table.resolve("mcp.one.read") == ("one", "read")
    assert table.resolve("one__read") is None
    clash = NameTable.build([("one", "read"), ("two", "read")], prefixes={"one": "two"})
    assert clash.to_wire == {}
