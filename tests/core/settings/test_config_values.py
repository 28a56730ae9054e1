"""Durations, patterns, ids and variables: the types of configuration values."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgate.config import ConfigError, load_text
from taskgate.config.server_forms import slug
from taskgate.core.settings.durations import duration, format_duration, milliseconds
from taskgate.core.settings.values import pattern_fault, server_id_fault


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600),
        ("1h 30m", 5400),
        ("1h30m", 5400),
        ("PT10M", 600),
        ("pt1h", 3600),
        ("P1D", 86_400),
        ("P1DT2H3M4.5S", 93_784.5),
        ("250ms", 0.25),
        ("45s", 45),
        ("45 sec", 45),
        ("1.5h", 5400),
        ("2d", 172_800),
        ("0", 0),
        ("0s", 0),
    ],
)
def test_a_duration_is_parsed(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "10", "-5m", "m", "10 minutes ago", "P", "PT", "1x", "9999999d", "1h,", "٣m"]
)
def test_an_invalid_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="; "):
        duration(text)


@pytest.mark.parametrize(("given", "wanted"), [("45000", 45_000), ("45s", 45_000), ("1_000", 1_000)])
def test_a_key_in_milliseconds_accepts_numbers_and_durations(given: str, wanted: int) -> None:
    assert milliseconds(given) == wanted


@pytest.mark.parametrize("value", ["", "soon", "1.5", "1e3"])
def test_a_key_in_milliseconds_refuses_other_values(value: str) -> None:
    with pytest.raises(ValueError, match="; "):
        milliseconds(value)


@given(st.integers(0, 10**10))
def test_a_formatted_duration_is_parsed_back(ms: int) -> None:
    assert duration(format_duration(ms / 1000)) == ms / 1000


@given(st.text(max_size=30))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert duration(text) >= 0


@pytest.mark.parametrize("name", ["files", "a", "my-server", "my_server", "A1", "x-", "9"])
def test_a_good_id(name: str) -> None:
    assert server_id_fault(name) is None


@pytest.mark.parametrize(
    "name", ["", "_a", "a_", "a__b", "a b", "a.b", "ä", "a/b", "resource", "prompt", "x" * 41, "a\n", "-a"]
)
def test_a_bad_id(name: str) -> None:
    assert server_id_fault(name)


@given(st.text(max_size=80))
def test_a_slug_is_always_a_good_id(name: str) -> None:
    assert server_id_fault(slug(name)) is None


@pytest.mark.parametrize(
    "pattern", ["*", "read_*", "a?", "[ab]c", "[!a]", "[]]", "[!]]x", "server:x*", "resource:file:///*", "a]"]
)
def test_a_good_pattern(pattern: str) -> None:
    assert pattern_fault(pattern) is None


@pytest.mark.parametrize("pattern", ["", "  ", "[", "a[b", "[]", "[!]", "x[a]y[", "a\nb", "*" * 17, "x" * 300])
def test_a_bad_pattern(pattern: str) -> None:
    assert pattern_fault(pattern)


def _hosts(text: str, environment: dict[str, str]) -> tuple[str, ...]:
    return load_text(f"allowed_hosts: ['{text}']", environment=environment).root.allowed_hosts


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("${A}", "one"),
        ("${env:A}", "one"),
        ("${A:-two}", "one"),
        ("${MISSING:-two}", "two"),
        ("${env:MISSING:-two}", "two"),
        ("${MISSING:-}", ""),
        ("${EMPTY:-two}", "two"),
        ("${EMPTY}", ""),
        ("x${A}y${A}", "xoneyone"),
        ("$${A}", "${A}"),
        ("$A", "$A"),
        ("${SNEAKY}", "${A}"),
    ],
)
def test_variables_are_filled_in(text: str, wanted: str) -> None:
    assert _hosts(text, {"A": "one", "EMPTY": "", "SNEAKY": "${A}"}) == (wanted,)


def test_an_unset_variable_outside_a_server_is_named_with_its_place() -> None:
    with pytest.raises(ConfigError) as caught:
        load_text("limits:\n  sessions: ${HOW_MANY}\n", "t.yaml", environment={})
    assert str(caught.value) == (
        "t.yaml:2:13: limits.sessions: the environment variable HOW_MANY is not set; "
        "set it, or give a default: ${HOW_MANY:-default}"
    )


def test_an_unset_variable_inside_a_server_skips_that_server_only() -> None:
    text = "servers:\n  a: {command: x, env: {T: '${TOKEN}', U: '${OTHER}', V: '${TOKEN}'}}\n  b: {command: y}\n"
    loaded = load_text(text, "t.yaml", environment={})
    assert list(loaded.root.servers) == ["b"]
    (skipped,) = loaded.skipped
    assert (skipped.server, skipped.reason, skipped.detail) == ("a", "env_missing", "TOKEN, OTHER")
    assert skipped.mark.line == 2


def test_a_server_left_out_may_still_be_named_by_rules_and_scopes() -> None:
    text = (
        "servers: {a: {command: '${NOT_SET}'}}\nscopes: {default: {default_servers: [a]}}\n"
        "governance: {rules: [{match: 'x', server: a, action: deny}]}\n"
    )
    assert load_text(text, environment={}).skipped[0].server == "a"


def test_a_disabled_server_is_skipped_as_disabled_regardless_of_its_variables() -> None:
    text = "servers: {a: {command: '${NOT_SET}', enabled: no}, b: {command: x, enabled: false}}"
    loaded = load_text(text, environment={})
    assert [(item.server, item.reason) for item in loaded.skipped] == [("a", "disabled"), ("b", "disabled")]


@pytest.mark.parametrize("word", ["off", "Off", "false", "no", "'off'"])
def test_unquoted_off_is_a_string_or_a_boolean_depending_on_the_key(word: str) -> None:
    text = f"telemetry: {{metrics: {word}}}\n"
    assert load_text(text, environment={}).root.telemetry.metrics is False


def test_off_and_on_are_accepted_for_string_keys() -> None:
    root = load_text("pins: off\nvalidate: off\nfacade: {add_server: on}\n", environment={}).root
    assert (root.pins, root.validate_arguments, root.facade.add_server) == ("off", "off", "on")
    assert load_text("facade: {add_server: false}", environment={}).root.facade.add_server == "off"


def test_text_stays_as_it_was_written() -> None:
    server = load_text(
        "servers: {x: {command: c, args: [1.10, 007, yes, 2026-01-02, 1:30], env: {V: 0x1F, W: on}}}", environment={}
    ).root.servers["x"]
    assert server.args == ("1.10", "007", "yes", "2026-01-02", "1:30")
    assert server.env == {"V": "0x1F", "W": "on"}


@pytest.mark.parametrize(
    ("section", "hint"),
    [
        ('governance: {rules: [{match: "files__delete_*", action: deny}]}', "write files:delete_*"),
        ('governance: {rules: [{match: "docs__*", action: deny}]}', "write web:*"),
        ('governance: {rules: [{match: "prompt:files__x", action: deny}]}', "write files:prompt:x"),
        ("governance: {force_required: [files__export]}", "write files:export"),
        ('scopes: {default: {default_servers: ["*"], tool_denylist: ["files__rm"]}}', "write files:rm"),
    ],
)
def test_a_pattern_on_the_name_that_callers_see_is_refused_with_the_right_spelling(section: str, hint: str) -> None:
    servers = "servers: {files: {command: x}, web: {url: 'http://h.example/mcp', namespace: docs}}\n"
    with pytest.raises(ConfigError) as caught:
        load_text(servers + section, environment={})
    assert hint in str(caught.value)


def test_two_underscores_alone_are_no_mistake() -> None:
    servers = "servers: {files: {command: x}}\n"
    rules = 'governance: {rules: [{match: "other__x", action: deny}, {match: "files:files__x", action: deny}]}'
    assert len(load_text(servers + rules, environment={}).root.governance.rules) == 2
    own = 'governance: {rules: [{match: "taskgate:add_server", action: deny}]}'
    assert len(load_text(servers + own, environment={}).root.governance.rules) == 1


@pytest.mark.parametrize(
    "headers, received",
    [
        ({"X-A": "one\r\nX-B: two"}, "the value of X-A contains a line break"),
        ({"X-A": "one\ntwo"}, "the value of X-A contains a line break"),
        ({"X-A": "a\x00b"}, "the value of X-A contains a line break"),
        ({"X A": "one"}, "'X A' is not a valid header name"),
        ({"X-A:": "one"}, "'X-A:' is not a valid header name"),
        ({"": "one"}, "'' is not a valid header name"),
        ({"X-A": "世界"}, "characters outside Latin-1"),
    ],
)
def test_a_header_that_would_break_the_request_is_an_error(headers: dict[str, str], received: str) -> None:
    root = {"servers": {"a": {"url": "http://127.0.0.1:1/mcp", "headers": headers}}}
    with pytest.raises(ConfigError, match=received) as caught:
        load_text(json.dumps(root), environment={})
    assert "two" not in str(caught.value)
    fine = {
        "servers": {
            "a": {"url": "http://127.0.0.1:1/mcp", "headers": {"X-A": "caf\u00e9\tx", "authorization": "Bearer x"}}
        }
    }
    assert load_text(json.dumps(fine), environment={}).root.servers["a"].headers["X-A"] == "caf\u00e9\tx"


@pytest.mark.parametrize(
    "text", ["https://traces.example/trace/{trace_id}", "http://127.0.0.1:3000?trace={trace_id}#{trace_id}"]
)
def test_address_of_traces_is_a_web_address_with_an_id(text: str) -> None:
    assert load_text(f"telemetry: {{trace_url: '{text}'}}", environment={}).root.telemetry.trace_url == text


@pytest.mark.parametrize(
    "text",
    [
        "javascript:alert('{trace_id}')",
        "data:text/html,{trace_id}",
        "/trace/{trace_id}",
        "https://traces.example/trace",
        "https://{trace_id}.example/",
        "https://{trace_id}@traces.example/",
        "https://traces.example/{trace_id}/{span_id}",
        "https://traces.example/a b/{trace_id}",
        "https:///{trace_id}",
    ],
)
def test_address_of_traces_that_is_unsafe_or_has_no_id_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        load_text(f'telemetry: {{trace_url: "{text}"}}', environment={})
