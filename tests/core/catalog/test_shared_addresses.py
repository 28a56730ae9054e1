"""Addresses that several servers use: unchanged for one, named for the others, and never another server's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.catalog.addresses import (
    Address,
    Claims,
    can_be_named,
    folders_above,
    is_reserved,
    named_address,
    own_address,
    read_named,
)

SERVERS = st.from_regex(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,10}[A-Za-z0-9])?", fullmatch=True)
URIS = st.builds(
    lambda scheme, rest: f"{scheme}://{rest}",
    st.sampled_from(["ui", "skill", "github"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
)


@given(SERVERS, URIS)
def test_a_named_address_is_read_back_exactly(server: str, uri: str) -> None:
    named = named_address(server, uri)
    assert read_named(named) == Address(server, uri)
    assert own_address(server, named) == uri
    assert is_reserved(named)
    assert own_address("another-one-x", named) == named


@given(URIS)
def test_an_address_is_unchanged_for_servers_that_were_not_named(uri: str) -> None:
    found = read_named(uri)
    if found is None:
        assert own_address("s", uri) == uri


def test_skills_keep_their_name_and_file_behind_the_server() -> None:
    assert named_address("b", "skill://refunds/SKILL.md") == "skill://b.taskgate/refunds/SKILL.md"
    assert named_address("b", "skill://acme/billing/refunds") == "skill://b.taskgate/acme/billing/refunds"
    assert own_address("b", "skill://b.taskgate/refunds/SKILL.md") == "skill://refunds/SKILL.md"
    assert own_address("c", "skill://b.taskgate/refunds/SKILL.md") == "skill://b.taskgate/refunds/SKILL.md"


@pytest.mark.parametrize("uri", ["ui:clock", "ui://", "clock", "", "1ui://x"])
def test_an_address_without_hierarchy_cannot_be_rewritten(uri: str) -> None:
    assert not can_be_named(uri)
    assert Claims({"a": [uri], "b": [uri]}, {}).renamed() == frozenset()


def test_an_address_of_one_server_stays_as_it_is() -> None:
    assert Claims({"a": ["ui://x"], "b": ["ui://y", "ui://x/y"]}, {}).renamed() == frozenset()


def test_an_address_of_two_servers_is_named_for_both() -> None:
    assert Claims({"a": ["ui://x"], "b": ["ui://x"]}, {}).renamed() == {Address("a", "ui://x"), Address("b", "ui://x")}


def test_a_server_keeps_an_address_that_was_handed_out() -> None:
    used = {"a": ["ui://x"], "b": ["ui://x"]}
    assert Claims(used, {"ui://x": "a"}).renamed() == {Address("b", "ui://x")}
    assert Claims({"b": ["ui://x"]}, {"ui://x": "a"}).renamed() == {Address("b", "ui://x")}
    assert Claims({"b": ["ui://x"]}, {"ui://x": "b"}).renamed() == frozenset()


def test_addresses_of_the_gateway_and_rewritten_ones_belong_to_no_server() -> None:
    evil = {"evil": ["ui://taskgate/task-card.html", "ui://a.taskgate/x"]}
    assert {address.uri for address in Claims(evil, {"ui://a.taskgate/x": "evil"}).renamed()} == set(evil["evil"])
    assert read_named(named_address("evil", "ui://a.taskgate/x")) == Address("evil", "ui://a.taskgate/x")


def test_folders_overlap_where_one_is_in_the_other() -> None:
    assert folders_above("skill://a/b/c") == ("skill://a", "skill://a/b", "skill://a/b/c")
    nested = {"a": ["skill://acme"], "b": ["skill://acme/billing"], "c": ["skill://acme-other"]}
    assert Claims(nested, {}, folders_above).renamed() == {
        Address("a", "skill://acme"),
        Address("b", "skill://acme/billing"),
    }
    assert Claims(nested, {"skill://acme": "a"}, folders_above).renamed() == {Address("b", "skill://acme/billing")}
    held = Claims({"b": ["skill://acme/billing"]}, {"skill://acme": "a"}, folders_above)
    assert held.renamed() == {Address("b", "skill://acme/billing")}
    own = Claims({"a": ["skill://acme", "skill://acme/billing"]}, {}, folders_above)
    assert own.renamed() == frozenset()
