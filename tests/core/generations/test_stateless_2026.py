"""The envelope of the stateless generation, its headers, and the format of its results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskgate.core import wire
from taskgate.core.errors import CallerError
from taskgate.core.generations.generation import Generation, generation_of
from taskgate.core.generations.stateless import (
    CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    TASKS_EXTENSION,
    VERSION,
    add_envelope,
    cached_privately,
    check_headers,
    has_envelope,
    input_required,
    mark_complete,
    missing_capability,
    name_header,
    read_envelope,
    remove_envelope,
    strip_result,
)
from taskgate.core.wire import Raw

GOOD: dict[str, Any] = {VERSION: "2026-07-28", CAPABILITIES: {}}


def test_revisions_belong_to_generations() -> None:
    assert generation_of("2026-07-28") is Generation.STATELESS
    assert generation_of("2025-06-18") is Generation.STATEFUL
    assert generation_of("2024-11-05") is Generation.STATEFUL
    assert generation_of("1999-01-01") is None


def test_an_envelope_is_read_with_its_optional_parts() -> None:
    meta = {**GOOD, CLIENT_INFO: {"name": "c"}, LOG_LEVEL: "info"}
    envelope = read_envelope({"_meta": meta}, b"2026-07-28")
    assert (envelope.client_info, envelope.log_level, envelope.accepts_tasks) == ({"name": "c"}, "info", False)
    assert has_envelope({"_meta": meta})
    bare = read_envelope({"_meta": {**GOOD, CLIENT_INFO: 1, LOG_LEVEL: 2}})
    assert (bare.client_info, bare.log_level) == (None, None)


@pytest.mark.parametrize(("settings", "expected_headers"), [({}, True), ({"x": 1}, False), (None, False)])
def test_only_an_empty_settings_object_declares_tasks(settings: Any, expected_headers: bool) -> None:
    meta = {**GOOD, CAPABILITIES: {"extensions": {TASKS_EXTENSION: settings}}}
    assert read_envelope({"_meta": meta}).accepts_tasks is expected_headers


@pytest.mark.parametrize(
    ("meta", "header", "error_type"),
    [
        ({}, None, "invalid_envelope"),
        ({VERSION: 1}, None, "invalid_envelope"),
        ({VERSION: "2026-07-28"}, None, "invalid_envelope"),
        ({VERSION: "2031-01-01", CAPABILITIES: {}}, None, "unsupported_version"),
        ({VERSION: "2031-01-01", CAPABILITIES: {}}, b"2026-07-28", "header_mismatch"),
    ],
)
def test_an_invalid_envelope_is_refused_with_its_error_type(
    meta: dict[str, Any], header: bytes | None, error_type: str
) -> None:
    with pytest.raises(CallerError) as refused:
        read_envelope({"_meta": meta}, header)
    assert refused.value.error_type == error_type


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("tools/call", {"name": "t"}, "t"),
        ("resources/read", {"uri": "a:b"}, "a:b"),
        ("tasks/get", {"taskId": "x"}, "x"),
        ("tools/list", {}, None),
        ("tools/call", {"name": 5}, None),
        ("tools/call", None, None),
    ],
)
def test_the_name_header_contains_the_called_name(method: str, params: Any, name: str | None) -> None:
    assert name_header(method, params) == name


HEADERS = {b"mcp-protocol-version": b"2026-07-28", b"mcp-method": b"tools/call", b"mcp-name": b"t"}


def test_headers_that_repeat_the_body_are_fine() -> None:
    check_headers("tools/call", {"name": "t"}, "2026-07-28", HEADERS)
    check_headers("x", {}, "2026-07-28", {b"mcp-protocol-version": b"2026-07-28"}, is_request=False)
    check_headers("tools/list", {}, "2026-07-28", {**HEADERS, b"mcp-method": b"tools/list"})


@pytest.mark.parametrize("header", [b"mcp-protocol-version", b"mcp-method", b"mcp-name"])
@pytest.mark.parametrize("value", [None, b"other", b"=?base64?!!?="])
def test_a_missing_or_different_header_is_a_mismatch(header: bytes, value: bytes | None) -> None:
    headers = {name: seen for name, seen in {**HEADERS, header: value}.items() if seen is not None}
    with pytest.raises(CallerError) as refused:
        check_headers("tools/call", {"name": "t"}, "2026-07-28", headers)
    assert refused.value.error_type == "header_mismatch"


def test_a_padded_or_encoded_header_is_read_and_one_that_is_not_ascii_is_a_mismatch() -> None:
    check_headers("tools/call", {"name": "t"}, "2026-07-28", {**HEADERS, b"mcp-name": b" t\t"})
    check_headers("tools/list", {}, "2026-07-28", {**HEADERS, b"mcp-method": b" tools/list"})
    check_headers("tools/call", {"name": "t"}, "2026-07-28", {**HEADERS, b"mcp-name": b"=?base64?dA==?="})
    with pytest.raises(CallerError):
        check_headers("tools/call", {"name": "\xff"}, "2026-07-28", {**HEADERS, b"mcp-name": b"\xff"})


def test_an_envelope_is_added_and_removed() -> None:
    members = wire.members_of(b'{"name":"t","_meta":{"vendor/x":  1}}')
    stamped = add_envelope(members, Raw(b"{}"), Raw(b'{"name":"c"}'), "debug")
    meta = json.loads(wire.join(stamped))["_meta"]
    assert meta == {
        "vendor/x": 1,
        VERSION: "2026-07-28",
        CAPABILITIES: {},
        CLIENT_INFO: {"name": "c"},
        LOG_LEVEL: "debug",
    }
    assert json.loads(wire.join(remove_envelope(stamped))) == {"name": "t", "_meta": {"vendor/x": 1}}
    assert "_meta" in add_envelope({}, Raw(b"{}"), None, None)


def test_results_are_marked_complete_once() -> None:
    assert json.loads(mark_complete(b'{"a":1}')) == {"resultType": "complete", "a": 1}
    assert mark_complete(b'{"resultType":"task"}') == b'{"resultType":"task"}'
    nested = json.loads(mark_complete(b'{"a":{"resultType":"x"}}'))
    assert nested == {"resultType": "complete", "a": {"resultType": "x"}}


def test_our_lists_are_private_and_have_a_ttl() -> None:
    assert json.loads(cached_privately(b'{"tools":[],"cacheScope":"public"}')) == {
        "tools": [],
        "cacheScope": "private",
        "resultType": "complete",
        "ttlMs": 0,
    }


def test_fields_unknown_to_stateful_callers_are_removed_from_results() -> None:
    body = b'{"resultType":"complete","ttlMs":5,"cacheScope":"public","contents":[]}'
    assert json.loads(strip_result(body, "resources/read")) == {"contents": []}
    assert "ttlMs" in json.loads(strip_result(body, "tools/call"))


def test_only_the_envelope_of_a_stateless_server_is_removed() -> None:
    add_envelope = {"io.modelcontextprotocol/serverInfo": {"name": "inner", "version": "1"}}
    assert json.loads(strip_result(wire.encode({"content": [], "_meta": add_envelope}), "tools/call")) == {
        "content": []
    }
    kept = {"content": [], "_meta": {"com.example/own": 1}}
    body = wire.encode({"content": [], "_meta": {**add_envelope, "com.example/own": 1}})
    assert json.loads(strip_result(body, "tools/call")) == kept


def test_questions_and_state_are_handed_over_as_a_result() -> None:
    asked = json.loads(input_required({"k": Raw(b'{"method":"m"}')}, "s"))
    assert asked == {"resultType": "input_required", "inputRequests": {"k": {"method": "m"}}, "requestState": "s"}
    assert json.loads(input_required({}, None)) == {"resultType": "input_required"}


def test_a_missing_capability_names_what_is_required() -> None:
    assert missing_capability({"sampling": {}}, "w").data == {"requiredCapabilities": {"sampling": {}}}


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, [{"type": "text", "text": "[1, 2]"}]),
        ([], [{"type": "text", "text": "[1, 2]"}]),
        ([{"type": "x"}], [{"type": "x"}]),
    ],
)
def test_structured_content_that_is_no_object_becomes_text_for_stateful_callers(content: Any, shown: Any) -> None:
    result = {"structuredContent": [1, 2], **({} if content is None else {"content": content})}
    stripped = json.loads(strip_result(json.dumps(result).encode(), "tools/call"))
    assert stripped == {"content": shown}
