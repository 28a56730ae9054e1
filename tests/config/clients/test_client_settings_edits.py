"""Changing one value of a settings file leaves every other byte unchanged."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import given
from hypothesis import strategies as st

from taskgate.config.clients import json_edit, toml_edit
from taskgate.config.clients.client import Format, SettingsPlace
from taskgate.config.clients.settings_text import SettingsError, restored, servers_in, with_servers

COMMENTED = """// settings of somebody
{
    // the theme
    "theme": "dark", /* really */
    "mcpServers": {
        // the first
        "a": {"command": "x"}, // after a
        "b": {"command": "y"},
    },
    "last": 1 // the last
    // the end
}
"""


def test_replacing_a_value_keeps_all_other_bytes() -> None:
    after = json_edit.json_set_value(COMMENTED, ("mcpServers",), {"taskgate": {"command": "t"}})
    start, end = COMMENTED.index("{\n        // the first"), COMMENTED.index(',\n    "last"')
    assert after.startswith(COMMENTED[:start])
    assert after.endswith(COMMENTED[end:])
    assert json_edit.json_value_at(after, ("mcpServers",)) == {"taskgate": {"command": "t"}}


def test_a_new_key_goes_to_the_end_in_the_style_of_the_file() -> None:
    after = json_edit.json_set_value(COMMENTED, ("x", "y"), {"z": 1})
    assert after.endswith(
        '    "last": 1, // the last\n    // the end\n    "x": {\n        "y": {\n            "z": 1\n        }\n    }\n}\n'
    )


def test_a_trailing_comma_is_used_instead_of_a_second_one() -> None:
    after = json_edit.json_set_value(COMMENTED, ("mcpServers", "c"), {"command": "z"})
    assert ",," not in after.replace(" ", "").replace("\n", "")
    assert list(json_edit.json_value_at(after, ("mcpServers",))) == ["a", "b", "c"]


@pytest.mark.parametrize("text", ["", "  \n", "{}", "{ }", "{\n}\n", "// only a comment\n{}"])
def test_an_empty_file_gets_its_first_key(text: str) -> None:
    after = json_edit.json_set_value(text, ("mcpServers", "a"), {"command": "x"})
    assert json_edit.json_value_at(after, ()) == {"mcpServers": {"a": {"command": "x"}}}
    assert text.split("{")[0].strip() in after


@pytest.mark.parametrize(("key", "left"), [("a", ["b", "c"]), ("b", ["a", "c"]), ("c", ["a", "b"])])
def test_removing_a_member_leaves_the_others(key: str, left: list[str]) -> None:
    text = '{"a": 1, // one\n "b": 2,\n "c": 3}'
    assert list(json_edit.json_value_at(json_edit.json_remove_value(text, (key,)), ())) == left


def test_removing_the_only_member_or_none_is_fine() -> None:
    assert json_edit.json_remove_value('{"a": {"b": 1}}', ("a", "b")) == '{"a": {}}'
    assert json_edit.json_remove_value('{"a": 1}', ("x",)) == '{"a": 1}'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4), st.text(max_size=4), st.text(max_size=4), JSON)
def test_a_set_value_is_there_and_nothing_else_has_changed(
    document: dict[str, Any], first: str, second: str, value: object
) -> None:
    for style in (None, 2, "\t"):
        text = json.dumps(document, indent=style, ensure_ascii=False)
        after = json.loads(json_edit.json_set_value(text, (first, second), value))
        inner = document.get(first)
        expected = {**document, first: {**(inner if isinstance(inner, dict) else {}), second: value}}
        assert after == expected
        gone = json.loads(json_edit.json_remove_value(text, (first,)))
        assert gone == {key: item for key, item in document.items() if key != first}


TOML = """# my codex
model = "m"  # which one

[mcp_servers.a]
command = "x"

[mcp_servers.a.env]
K = "v"

[other]  # kept
y = 1

[mcp_servers.b]
url = "https://example.test/mcp"
"""


def test_toml_tables_are_replaced_and_the_rest_stays() -> None:
    after = toml_edit.toml_set_value(TOML, ("mcp_servers",), {"taskgate": {"command": "t", "args": ["stdio"]}})
    assert "# my codex" in after
    assert "[other]  # kept" in after
    assert tomlkit.parse(after).unwrap() == {
        "model": "m",
        "other": {"y": 1},
        "mcp_servers": {"taskgate": {"command": "t", "args": ["stdio"]}},
    }
    assert "mcp_servers" not in toml_edit.toml_remove_value(after, ("mcp_servers",))
    assert toml_edit.toml_value_at("", ("mcp_servers",)) is None


def _place(form: Format) -> SettingsPlace:
    return SettingsPlace(Path("x"), ("mcp_servers",) if form is Format.TOML else ("mcpServers",), form, main=True)


@pytest.mark.parametrize(("form", "before"), [(Format.JSON, COMMENTED), (Format.TOML, TOML)])
def test_servers_are_restored_even_if_the_client_changed_its_file(form: Format, before: str) -> None:
    place = _place(form)
    wrapped = with_servers(before, place, {"taskgate": {"command": "t"}})
    assert list(servers_in(wrapped, place)) == ["taskgate"]
    if form is Format.JSON:
        changed = json_edit.json_set_value(wrapped, ("theme",), "light")
        changed = json_edit.json_set_value(changed, ("mcpServers", "new"), {"command": "n"})
    else:
        changed = wrapped.replace('model = "m"', 'model = "n"') + '\n[mcp_servers.new]\ncommand = "n"\n'
    back = restored(changed, before, place)
    assert servers_in(back, place) == {**servers_in(before, place), "new": {"command": "n"}}
    assert ('"light"' in back) if form is Format.JSON else ('model = "n"' in back)
    if form is Format.JSON:
        assert "// the first" in back


@pytest.mark.parametrize(("form", "before"), [(Format.JSON, '{"a": 1}'), (Format.TOML, "a = 1\n")])
def test_an_added_map_is_removed_again(form: Format, before: str) -> None:
    place = _place(form)
    wrapped = with_servers(before, place, {"taskgate": {"command": "t"}})
    changed = wrapped.replace("1", "2")
    assert place.pointer[0] not in restored(changed, before, place)


@pytest.mark.parametrize(("form", "text"), [(Format.JSON, "{"), (Format.TOML, "a = ")])
def test_an_unparsable_file_is_reported(form: Format, text: str) -> None:
    with pytest.raises(SettingsError, match=r"invalid (JSON|TOML)"):
        servers_in(text, _place(form))


@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from(["[a]", "\n", "a = 1", "mcp_servers", ".", "=", "{", "}", '"', "[", "]", "#"])).map(
        "".join
    )
)
def test_any_text_is_parsed_or_reported_as_unparsable(text: str) -> None:
    for form in Format:
        with contextlib.suppress(SettingsError):
            servers_in(text, _place(form))
            after = with_servers(text, _place(form), {"taskgate": {"command": "t"}})
            assert servers_in(after, _place(form)) == {"taskgate": {"command": "t"}}
