"""Files that are not configurations at all: always a ConfigError, within limits of time and memory."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.any_json import any_object
from tests.harness.raised import raises_problem

from taskgate.config import ConfigError, load, load_text, yaml_text
from taskgate.config.document import read_document

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20)
)


def _refused(text: str, kind: str = "yaml") -> str:
    with pytest.raises(ConfigError) as caught:
        load_text(text, f"t.{kind}", environment={})
    return str(caught.value)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    with raises_problem("", "4194304", file="huge.yaml"):
        load(path, {})


def test_an_alias_bomb_is_refused() -> None:
    assert "aliases count in full" in _refused(BOMB)


@pytest.mark.parametrize("kind", ["yaml", "json"])
def test_deep_nesting_is_refused(kind: str) -> None:
    assert "nested deeper than 64 levels" in _refused('{"a":' + "[" * 100_000, kind)


def test_deep_block_nesting_is_refused() -> None:
    assert "nested deeper than 64 levels" in _refused(
        "".join(f"{' ' * i}a:\n" for i in range(500)) + " " * 500 + "b: 1"
    )


def test_too_many_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "more than 100000 values" in _refused('{"a": [' + "1," * 120_000 + "1]}", "json")
    assert yaml_text.MAX_NODES == 100_000
    # Parsing YAML is slow; the test only requires that it ends at the limit.
    monkeypatch.setattr(yaml_text, "MAX_NODES", 5_000)
    assert "more than 5000 values" in _refused("a: [" + "1," * 6_000 + "]")


def test_deep_toml_is_refused() -> None:
    _refused("a = " + "[" * 20_000, "toml")


def test_a_binary_file_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_bytes(b"profile: production\n\xff\xfe")
    with raises_problem("", "t.yaml:2:1", "UTF-8"):
        load(path, {})
    path.write_bytes(b"a: 1\n\0\0")
    with raises_problem("", "t.yaml:2:1", "NUL"):
        load(path, {})


def test_a_folder_a_pipe_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, words in (
        ("", "cannot be opened|is not a regular file"),
        ("pipe", "is not a regular file"),
        ("x", "No such file"),
    ):
        with pytest.raises(ConfigError, match=words):
            load(tmp_path / name, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: \x07", "control character"),
        ("? [a]\n: b", "used as a key"),
        ("a: &x [*x]", "unfinished anchor"),
        ("a: &x 1\n*x : 2", "alias is used as a key"),
        ("a: {<<: 5}", "only a map can be merged"),
        ("!!python/object/apply:os.system ['true']", "the file contains a list"),
        ("k" * 600 + ": 1", "longer than 512"),
        ("%YAML 9.9\n---\na: 1", "YAML"),
    ],
)
def test_odd_yaml_is_refused(text: str, words: str) -> None:
    assert words in _refused(text)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1,2",
        '{"a" 1}',
        '{"a":1,"a":2}',
        "{'a':1}",
        '{"a":tru}',
        '{"a":"\\x"}',
        '{"a":01}',
        "{} x",
        '{"a":1 "b":2}',
        "[,]",
    ],
)
def test_bad_json_is_refused(text: str) -> None:
    assert "not valid JSON" in _refused(text, "json")


def test_json_may_have_comments_trailing_commas_and_tabs() -> None:
    text = '\ufeff// one\n{\t/* two */ "profile": "development", // three\n\t"allowed_hosts": ["a",], }'
    root = load_text(text, "t.jsonc", environment={}).root
    assert (root.profile, root.allowed_hosts) == ("development", ("a",))


def test_a_folder_whose_name_cannot_be_one_is_a_warning() -> None:
    loaded = load_text('{"registry_dir": "a\\u0000b"}', "t.json", environment={})
    assert ["null byte" in str(warning) for warning in loaded.warnings] == [True]


def test_an_empty_file_is_a_configuration() -> None:
    for text in ("", "# nothing\n", "---\n", "servers:\n"):
        assert load_text(text, environment={}).root.servers == {}


WORDS = st.sampled_from(
    [
        "servers",
        "scopes",
        "governance",
        "rules",
        "a",
        "${X}",
        "*",
        ":",
        "- ",
        "{",
        "}",
        "[",
        "]",
        "\n",
        "  ",
        "config",
        '"',
        "'",
        "approval",
        "channels",
        "inbox",
        "tokens",
        "mcpServers",
        "sources",
        "id",
        "&a",
        "*a",
        "<<",
        "#",
        ",",
        "mcp.enabled",
        "true",
        "profiles",
        "extends",
        "tags",
        "match",
        "environments",
        "environment",
        "x-",
        "tasks",
        "null",
        "cedar",
        "policies",
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(st.text(max_size=200), st.lists(WORDS, max_size=40).map("".join)),
    st.sampled_from(["yaml", "json", "toml"]),
)
def test_any_text_loads_or_is_a_config_error(text: str, kind: str) -> None:
    with contextlib.suppress(ConfigError):
        load_text(text, f"t.{kind}", environment={"X": "x"})


KEYS = """
    servers scopes governance rules approval channels tokens mcpServers sources profiles tags config mcp.enabled
    mcp.profile_overrides defaults limits tasks cedar policies facade extends task_annotation_overrides
    force_required registry_dir environments environment a type id disabled
    """.split()  # noqa: SIM905 - a list of words reads better as words


@settings(max_examples=150, deadline=None)
@given(any_object([*KEYS, "*", "true", "inbox", "${X}"]))
def test_any_shape_loads_or_is_a_config_error(tree: dict[str, object]) -> None:
    with contextlib.suppress(ConfigError):
        load_text(json.dumps(tree), "t.json", environment={"TASKGATE_ENV": "a"})


def test_an_unknown_kind_of_document_is_an_internal_error() -> None:
    with pytest.raises(ValueError, match="unknown document format"):
        read_document("", "t", "xml")
