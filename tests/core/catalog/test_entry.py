"""Entries: what is read of an upstream's list, and that rendering changes nothing but what it must."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.core.catalog.annotate import TaskSupport
from taskgate.core.catalog.entry import EntryKind, read_entries, render
from taskgate.core.generations import Generation

AWKWARD = (
    b'{"zeta":1.50,"name":"read","big":123456789012345678901234567890,"annotations":{"readOnlyHint":true,"x":1e2},'
    b'"inputSchema":{"type":"object"},"execution":{"taskSupport":"required","more":[ 1 ]},"unknown":{"k":"\\u00e9"}}'
)


def read(raw: bytes, kind: EntryKind = EntryKind.TOOL) -> Any:
    return list(read_entries(kind, "files", msgspec.Raw(raw)))


def test_an_entry_keeps_its_bytes_beside_the_fields_we_decide_on() -> None:
    (entry,) = read(b"[" + AWKWARD + b"]")
    assert (entry.kind, entry.server, entry.name) == (EntryKind.TOOL, "files", "read")
    assert bytes(entry.raw) == AWKWARD
    assert entry.task_support is TaskSupport.REQUIRED
    assert entry.input_schema == {"type": "object"}
    assert entry.annotations["readOnlyHint"] is True


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
def test_what_has_no_name_is_left_out(kind: EntryKind, raw: bytes, names: list[str]) -> None:
    entries = read(raw, kind)
    assert [entry.name for entry in entries] == names
    assert all(entry.annotations == {} for entry in entries)


def test_a_stateful_caller_sees_the_new_name_and_task_support_and_every_other_byte_as_it_came() -> None:
    (entry,) = read(b"[" + AWKWARD + b"]")
    shown = render(entry, "files__read", TaskSupport.OPTIONAL, Generation.STATEFUL)
    expected = AWKWARD.replace(b'"name":"read"', b'"name":"files__read"').replace(b'"required"', b'"optional"')
    expected = expected.replace(b'"x":1e2}', b'"x":1e2,"taskSupport":"optional"}')
    assert shown == expected


def test_a_stateless_caller_sees_no_execution() -> None:
    (entry,) = read(b"[" + AWKWARD + b"]")
    shown = render(entry, "files__read", TaskSupport.OPTIONAL, Generation.STATELESS)
    start, end = AWKWARD.index(b',"execution"'), AWKWARD.index(b',"unknown"')
    assert shown == (AWKWARD[:start] + AWKWARD[end:]).replace(b'"name":"read"', b'"name":"files__read"')


def test_prompts_are_only_renamed_and_resources_never_changed() -> None:
    (prompt,) = read(b'[{"name":"p","execution":{"taskSupport":"required"}}]', EntryKind.PROMPT)
    shown = render(prompt, "files__p", TaskSupport.OPTIONAL, Generation.STATEFUL)
    assert shown == b'{"name":"files__p","execution":{"taskSupport":"required"}}'
    (resource,) = read(b'[{ "uri" : "file:///a" }]', EntryKind.RESOURCE)
    assert render(resource, "ignored", None, Generation.STATEFUL) == b'{ "uri" : "file:///a" }'


def test_task_support_is_added_where_there_was_none_and_replaces_what_is_no_object() -> None:
    (entry,) = read(b'[{"name":"a","annotations":null}]')
    shown = json.loads(render(entry, "a", TaskSupport.FORBIDDEN, Generation.STATEFUL))
    assert shown["execution"] == shown["annotations"] == {"taskSupport": "forbidden"}
    assert json.loads(render(entry, "a", None, Generation.STATEFUL)) == {"name": "a", "annotations": None}


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from("abc")), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["title", "x", "y", "_meta", "outputSchema", "icons"]), _values),
    st.sampled_from(Generation),
)
def test_rendering_keeps_everything_else(fields: dict[str, Any], generation: Generation) -> None:
    raw = json.dumps([{"name": "t", **fields}]).encode()
    (entry,) = read(raw)
    shown = json.loads(render(entry, "s__t", TaskSupport.OPTIONAL, generation))
    assert {key: shown[key] for key in fields} == fields
    assert shown["name"] == "s__t"
