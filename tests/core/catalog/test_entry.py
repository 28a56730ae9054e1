"""Entries: what is parsed of an upstream's list, and that rendering changes nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.catalog.entry import EntryKind, read_entries
from taskgate.core.catalog.rendering import Audience, render
from taskgate.core.catalog.task_support import TaskSupport
from taskgate.core.generations.generation import Generation
from taskgate.core.raw_json import Raw

AWKWARD = (
    b'{"zeta":1.50,"name":"read","big":123456789012345678901234567890,"annotations":{"readOnlyHint":true,"x":1e2},'
    b'"inputSchema":{"type":"object"},"execution":{"taskSupport":"required","more":[ 1 ]},"unknown":{"k":"\\u00e9"}}'
)


def read(raw: bytes, kind: EntryKind = EntryKind.TOOL) -> Any:
    return list(read_entries(kind, "files", Raw(raw)))


def test_entries_are_equal_if_their_bytes_are() -> None:
    (entry,), (same,), (other,) = read(b"[" + AWKWARD + b"]"), read(b"[" + AWKWARD + b"]"), read(b'[{"name":"read"}]')
    assert entry.digest
    assert entry == same
    assert (entry != same, entry != other) == (False, True)
    assert len({entry, same, other}) == 2
    assert AWKWARD not in [entry]


def test_an_entry_keeps_its_bytes_beside_the_fields_we_decide_on() -> None:
    (entry,) = read(b"[" + AWKWARD + b"]")
    assert (entry.kind, entry.server, entry.name) == (EntryKind.TOOL, "files", "read")
    assert bytes(entry.raw) == AWKWARD
    assert entry.task_support is TaskSupport.REQUIRED
    assert entry.input_schema == {"type": "object"}
    assert entry.annotations["readOnlyHint"] is True
    (same,) = read(b"[ " + AWKWARD + b" ]")
    assert entry.digest == same.digest == entry.digest
    assert entry.digest != read(b'[{"name":"read"}]')[0].digest


def test_digest_of_a_prompt_is_that_of_its_definition() -> None:
    (prompt,) = read(b'[{"name":"a","title":"A"}]', EntryKind.PROMPT)
    (spaced,) = read(b'[ { "title": "A", "name": "a" } ]', EntryKind.PROMPT)
    (other,) = read(b'[{"name":"a","title":"B"}]', EntryKind.PROMPT)
    assert prompt.digest == spaced.digest == prompt.digest
    assert prompt.digest != other.digest


@pytest.mark.parametrize(
    ("kind", "raw", "names"),
    [
        (EntryKind.TOOL, b'[{"name":"a"},{"name":""},{"name":5},{},5,null,{"name":"b","annotations":5}]', ["a", "b"]),
        (EntryKind.PROMPT, b'[{"name":"p"}]', ["p"]),
        (EntryKind.RESOURCE, b'[{"uri":"file:///a","name":"n"}]', ["file:///a"]),
        (EntryKind.TEMPLATE, b'[{"uriTemplate":"file:///{a}"}]', ["file:///{a}"]),
        (EntryKind.TOOL, b"{}", []),
    ],
)
def test_an_entry_without_a_name_is_omitted(kind: EntryKind, raw: bytes, names: list[str]) -> None:
    entries = read(raw, kind)
    assert [entry.name for entry in entries] == names
    assert all(entry.annotations == {} for entry in entries)


def test_a_stateful_caller_sees_the_new_name_and_task_support_and_every_other_byte_as_it_came() -> None:
    (entry,) = read(b"[" + AWKWARD + b"]")
    shown = render(entry, "files__read", TaskSupport.OPTIONAL, Audience(Generation.STATEFUL))
    expected = AWKWARD.replace(b'"name":"read"', b'"name":"files__read"').replace(b'"required"', b'"optional"')
    expected = expected.replace(b'"x":1e2}', b'"x":1e2,"taskSupport":"optional"}')
    assert shown == expected


def test_a_stateless_caller_sees_no_execution() -> None:
    (entry,) = read(b"[" + AWKWARD + b"]")
    shown = render(entry, "files__read", TaskSupport.OPTIONAL, Audience(Generation.STATELESS))
    start, end = AWKWARD.index(b',"execution"'), AWKWARD.index(b',"unknown"')
    assert shown == (AWKWARD[:start] + AWKWARD[end:]).replace(b'"name":"read"', b'"name":"files__read"')


def test_prompts_are_only_renamed_and_resources_keep_their_bytes_under_their_own_address() -> None:
    (prompt,) = read(b'[{"name":"p","execution":{"taskSupport":"required"}}]', EntryKind.PROMPT)
    shown = render(prompt, "files__p", TaskSupport.OPTIONAL, Audience(Generation.STATEFUL))
    assert shown == b'{"name":"files__p","execution":{"taskSupport":"required"}}'
    (resource,) = read(b'[{ "uri" : "file:///a" }]', EntryKind.RESOURCE)
    assert render(resource, "file:///a", None, Audience(Generation.STATEFUL)) == b'{ "uri" : "file:///a" }'
    (page,) = read(b'[{"uri":"ui://x","name":"n"}]', EntryKind.RESOURCE)
    assert render(page, "ui://s.taskgate/x", None, Audience(Generation.STATEFUL)) == (
        b'{"uri":"ui://s.taskgate/x","name":"n"}'
    )
    tool = b'{"name":"t","inputSchema":{},"_meta":{"ui":{"resourceUri":"ui://x"}}}'
    (entry,) = read(b"[" + tool + b"]")
    audience = Audience(Generation.STATELESS)
    assert render(entry, "t", None, audience, interfaces={"ui://y": None}) == tool
    (plain,) = read(b'[{"name":"t","inputSchema":{}}]')
    assert json.loads(render(plain, "t", None, audience, card="ui://c"))["_meta"]["ui"] == {"resourceUri": "ui://c"}
    shown = render(entry, "t", None, audience, interfaces={"ui://x": "ui://s.taskgate/x"})
    assert json.loads(shown)["_meta"] == {"ui": {"resourceUri": "ui://s.taskgate/x"}}


def test_task_support_is_added_or_replaces_an_invalid_value() -> None:
    (entry,) = read(b'[{"name":"a","annotations":null}]')
    shown = json.loads(render(entry, "a", TaskSupport.FORBIDDEN, Audience(Generation.STATEFUL)))
    assert shown["execution"] == shown["annotations"] == {"taskSupport": "forbidden"}
    assert json.loads(render(entry, "a", None, Audience(Generation.STATEFUL))) == {"name": "a", "annotations": None}


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from("abc")), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["title", "x", "y", "_meta", "icons"]), _values),
    st.sampled_from(Generation),
)
def test_rendering_keeps_everything_else(fields: dict[str, Any], generation: Generation) -> None:
    raw = json.dumps([{"name": "t", **fields}]).encode()
    (entry,) = read(raw)
    shown = json.loads(render(entry, "s__t", TaskSupport.OPTIONAL, Audience(generation)))
    assert {key: shown[key] for key in fields} == fields
    assert shown["name"] == "s__t"


def output_schema_of(schema: Any, audience: Audience, *, notices: bool = False) -> Any:
    (entry,) = read_entries(EntryKind.TOOL, "s", Raw(json.dumps([{"name": "t", "outputSchema": schema}]).encode()))
    return json.loads(render(entry, "t", None, audience, notices=notices)).get("outputSchema", "left out")


@pytest.mark.parametrize(
    "schema", [{"type": "array"}, {"anyOf": [{"type": "object"}]}, True, None, {"type": ["object"]}]
)
def test_a_stateful_caller_is_never_shown_an_output_schema_that_is_not_of_objects(schema: Any) -> None:
    for notices in (False, True):
        assert output_schema_of(schema, Audience(Generation.STATEFUL), notices=notices) == "left out"
    assert output_schema_of(schema, Audience(Generation.STATELESS)) == schema


def test_where_a_notice_may_come_the_output_schema_allows_it() -> None:
    own = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for generation in Generation:
        assert output_schema_of(own, Audience(generation)) == own
        listed = output_schema_of(own, Audience(generation), notices=True)
        assert listed["properties"] == own["properties"]
        assert listed["anyOf"][0] == {"required": ["a"]}
    listed = output_schema_of({"type": "array"}, Audience(Generation.STATELESS), notices=True)
    assert "type" not in listed


def test_task_support_is_removed_for_revisions_without_tasks() -> None:
    raw = b'[{"name":"t","execution":{"taskSupport":"required"},"annotations":{"taskSupport":"required","title":"T"}}]'
    (entry,) = read_entries(EntryKind.TOOL, "s", Raw(raw))
    old = Audience(Generation.STATEFUL, supports_tasks=False)
    assert json.loads(render(entry, "t", TaskSupport.OPTIONAL, old)) == {"name": "t", "annotations": {"title": "T"}}


def test_tools_without_declarations_share_their_traits() -> None:
    plain, other, long, shown = read(
        b'[{"name":"a"},{"name":"b","annotations":{"title":"B"}},{"name":"c","execution":{"taskSupport":"optional"}},'
        b'{"name":"d","outputSchema":{"type":"object"}}]'
    )
    assert plain.traits is other.traits
    assert [plain.task_support, long.task_support] == [None, TaskSupport.OPTIONAL]
    assert [plain.traits.has_output_schema, shown.traits.has_output_schema] == [False, True]


def test_definition_is_parsed_from_its_bytes() -> None:
    (entry,) = read(b"[" + AWKWARD + b"]")
    assert entry.definition == json.loads(AWKWARD)
    assert entry.definition is entry.definition


def test_the_digest_of_a_definition_is_computed_once_and_follows_every_field() -> None:
    one, same, other = read(b'[{"name":"t"},{"name":"t"},{"name":"t","title":"T"}]')
    assert one.digest == one.digest == same.digest
    assert one.digest != other.digest


def test_an_entry_without_task_support_has_the_fields_of_the_server() -> None:
    raw = b'{"name":"t","execution":{"taskSupport":"required"}}'
    (entry,) = read(b"[" + raw + b"]")
    assert render(entry, "t", None, Audience(Generation.STATEFUL)) == raw


def test_an_output_schema_that_cannot_be_joined_with_a_notice_is_left_out() -> None:
    found_elsewhere = {"$id": "https://example.test/s", "type": "array"}
    assert output_schema_of(found_elsewhere, Audience(Generation.STATELESS), notices=True) == "left out"


def test_annotations_without_task_support_are_unchanged() -> None:
    raw = b'{"name":"t","annotations":{"title":"T"}}'
    (entry,) = read(b"[" + raw + b"]")
    assert render(entry, "t", TaskSupport.OPTIONAL, Audience(Generation.STATEFUL, supports_tasks=False)) == raw


def test_arguments_that_are_sent_as_headers_are_found() -> None:
    def tool(header: Any) -> bytes:
        schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": header}}}
        return json.dumps([{"name": "a", "inputSchema": schema}]).encode()

    (declared,) = read(tool("Region"))
    assert [param.path for param in declared.header_params] == [("region",)]
    (escaped,) = read(tool("Region").replace(b"x-mcp-header", b"x\\u002dmcp-header"))
    assert escaped.header_params == declared.header_params
    (silent,) = read(tool("Region").replace(b"x-mcp-header", b"x-other"))
    assert silent.header_params == ()
    (broken,) = read(tool("no spaces allowed"))
    assert broken.header_params is None
