"""Tools get unique names that are valid in Python, regardless of their names at servers."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.scripts.names import PythonName, python_names


def names_of(*tools: tuple[str, str]) -> dict[str, str]:
    listed = [(server, name, f"{server}__{name}") for server, name in tools]
    return {found.tool: f"{found.namespace}.{found.function}" for found in python_names(listed)}


def test_plain_names_stay() -> None:
    assert names_of(("files", "read_file")) == {"files__read_file": "files.read_file"}


def test_other_characters_keywords_and_digits() -> None:
    assert names_of(("my-server", "class"), ("3d", "2nd.try")) == {
        "my-server__class": "my_server.class_",
        "3d__2nd.try": "n3d.n2nd_try",
    }
    assert names_of(("日本", "読む")) == {"日本__読む": "server.tool"}


def test_server_does_not_hide_a_function_or_module() -> None:
    for name in ("print", "inputs", "call_tool", "asyncio", "json", "len", "self"):
        assert names_of((name, "x")) == {f"{name}__x": f"{name}_.x"}


def test_names_that_read_alike_are_numbered_and_a_plain_one_stays() -> None:
    assert names_of(("a", "x-y"), ("a", "x_y"), ("a", "x.y"), ("a-b", "x"), ("a_b", "x")) == {
        "a__x-y": "a.x_y_2",
        "a__x.y": "a.x_y_3",
        "a__x_y": "a.x_y",
        "a-b__x": "a_b_2.x",
        "a_b__x": "a_b.x",
    }


@given(st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6)), max_size=6, unique=True))
def test_every_tool_has_one_identifier_of_its_own_in_any_order(tools: list[tuple[str, str]]) -> None:
    listed = [(server, name, f"{server}/{name}") for server, name in tools]
    found = python_names(listed)
    assert {each.tool for each in found} == {tool for _, _, tool in listed}
    written = [(each.namespace, each.function) for each in found]
    assert len(set(written)) == len(written)
    assert all(word.isidentifier() and word.isascii() for word in itertools.chain(*written))
    assert python_names(reversed(listed)) == found


def test_tool_with_plain_names_keeps_them() -> None:
    assert python_names([("a", "b", "a__b")]) == (PythonName("a", "b", "a__b"),)
