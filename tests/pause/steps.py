"""Everything that processes a peer's input in one step of the event loop, each with input of growing size.

A step is made for a size (mostly bytes) and then run alone. Sizes end where a configured limit refuses what is larger, or
at a few megabytes. `table` shows all of them; the test holds each below the longest pause that is allowed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.harness.cpu_time import PAUSE_S

from taskgate.channels import slack_blocks
from taskgate.channels.card_json import card_json
from taskgate.core import wire
from taskgate.core.catalog.names import NameTable
from taskgate.core.catalog.pages import EntryList, page
from taskgate.core.catalog.pin import Pin, PinMode, compare_pin
from taskgate.core.catalog.regex_filter import RegexFilter
from taskgate.core.catalog.schema_check import SchemaCheck
from taskgate.core.catalog.search import SearchDocument, SearchIndex
from taskgate.core.catalog.suspicions import SLICE
from taskgate.core.completion.memory import UsageMemory
from taskgate.core.completion.ranking import CandidateIndex, complete
from taskgate.core.completion.schema_values import values_from_schema
from taskgate.core.digest import digest_of_json
from taskgate.core.errors import TaskgateError
from taskgate.core.globs import Glob
from taskgate.core.governance.approval import Approval, Binding
from taskgate.core.governance.card import Card, card, show_json
from taskgate.core.governance.workflow import Workflow
from taskgate.core.patterns import PatternSet
from taskgate.core.questions.secret_requests import secret_fields
from taskgate.core.redaction.difference import difference
from taskgate.core.redaction.fields import compile_redaction
from taskgate.core.redaction.looks_secret import looks_secret
from taskgate.core.resource_uri import is_ambiguous, normal_form
from taskgate.core.scripts.check_source import parse
from taskgate.core.strict_json import AmbiguousJson
from taskgate.core.text.confusables import first_confusable, fold, lookalike_member, lookalike_property
from taskgate.core.text.lookalikes import skeleton
from taskgate.core.text.peer_url import check_peer_url
from taskgate.core.uri_template import UriTemplate, first_matching
from taskgate.core.waterfall import Span, diagram
from taskgate.gateway.governance.approvals import RENDERED_INLINE_BYTES
from taskgate.mcp.lines import LineSplitter
from taskgate.mcp.param_headers import param_headers_of
from taskgate.mcp.sse import SseParser

Step = Callable[[], object]
KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Case:
    """One matcher, parser or renderer with one kind of input."""

    name: str
    sizes: tuple[int, ...]
    make: Callable[[int], Step]
    pause_s: float = PAUSE_S

    def steps(self) -> Iterator[tuple[int, Step]]:
        for size in self.sizes:
            yield size, refusing(self.make(size))


def refusing(step: Step) -> Step:
    """A refusal is a valid result: only the time until it is measured."""

    def run() -> None:
        with suppress(TaskgateError, AmbiguousJson, ValueError):
            step()

    return run


SMALL = (100, 1_000, 10_000)
TEXT = (KIB, 32 * KIB, 256 * KIB, MIB)
MARKS = "\u0301\u0327"
PARSED_S = 0.1
"""A script is parsed in a thread, but Python's parser lets no other thread run meanwhile."""
SOURCES = (KIB, 4_000, 32 * KIB, 198_000)
LONGEST_PARSED = (4_000, 32 * KIB, 46_000)
"""Up to the largest that is not refused for its parts."""


def a_schema_value(kind: str) -> Callable[[int], Step]:
    """A value that grows against a schema that was made ready before."""
    doubling: dict[str, Any] = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(12)}
    schemas: dict[str, Any] = {
        "alternatives": {"$defs": {**doubling, "a12": {"type": "integer"}}, "items": {"$ref": "#/$defs/a0"}},
        "honest": {"items": {"type": "integer"}},
        "look-around": {"items": {"pattern": "^(?=x)(x+)+$"}},
        "counted": {"items": {"pattern": "[xy]*x[xy]{300}z"}},
    }
    check = SchemaCheck.compile(schemas[kind])

    def make(size: int) -> Step:
        value = ["xy" * (size // 2)] if kind in ("look-around", "counted") else ["bad"] * (size // 6)
        text = json.dumps(value).encode()
        return lambda: check.violations(value, text)

    return make


def a_schema(size: int) -> Step:
    schema = {"properties": {f"p{n}": {"type": "string", "maxLength": n} for n in range(size // 40)}}
    return lambda: SchemaCheck.compile(schema)


def a_pattern_schema(size: int) -> Step:
    schema = {"properties": {f"p{n}": {"pattern": rf"\p{{L}}{{20}}x{n}"} for n in range(size)}}
    return lambda: SchemaCheck.compile(schema)


def a_template(size: int) -> Step:
    template = UriTemplate("x://" + "{a}" * 9 + "{b}-" * (size // 10) + "!")
    uri = "x://" + "a-" * (size // 2)
    return lambda: first_matching([(template, "s")], uri)


def a_suggestion_by_template(size: int) -> Step:
    template = UriTemplate("x://{a}/{b}-{c}/{d}")
    uris = [f"x://{n}/{'a-' * 20}/{n}" for n in range(size)]
    return lambda: CandidateIndex.build(template.values_in("b", uris))


def a_glob(size: int) -> Step:
    glob = Glob.compile("*a*b*[cd]*a*b?*e")
    name = "ab" * (size // 2)
    return lambda: (glob.matches(name), glob.lookalike.matches(skeleton(name)))


def a_pattern_list(size: int) -> Step:
    patterns = PatternSet.of([f"*a{n}*b*" for n in range(size)])
    return lambda: patterns.for_server("s").among(["ab" * 30] * 100)


def a_search(size: int) -> Step:
    documents = [SearchDocument(f"s__tool_{n}", f"tool_{n}", description=f"does {n} things " * 5) for n in range(size)]
    index = SearchIndex.build(documents)
    return lambda: index.search("thingz dose everythin " * 20)


def a_title(size: int) -> Step:
    return lambda: SearchIndex.build([SearchDocument("s__a", "a", title="a" + MARKS * (size // 2))])


def a_search_query(size: int) -> Step:
    index = SearchIndex.build([SearchDocument("s__a", "a")])
    return lambda: index.search("wordy " * (size // 6))


def a_completion(size: int) -> Step:
    index = CandidateIndex.build(f"value-{n}-aaaa" for n in range(size))
    return lambda: complete(index, "vlaue-" + "a" * 300)


def a_suggesting_schema(size: int) -> Step:
    schema = {"properties": {"a": {"anyOf": [{"enum": [f"v{n}" for n in range(100)]}] * (size // 100)}}}
    return lambda: values_from_schema(schema, "a")


def learning(size: int) -> Step:
    memory, arguments = UsageMemory(), {f"a{n}": "some value" for n in range(size)}
    return lambda: memory.learn("caller", "s", "t", arguments, 0.0)


def a_form(properties: dict[str, Any], message: str = "") -> Step:
    """Look for fields that ask for a secret."""
    params = {"message": message, "requestedSchema": {"properties": properties}}
    return lambda: secret_fields(params)


def a_redaction(size: int) -> Step:
    redaction = compile_redaction(["**.password", "*.*.token", "a.**.b.**.c"])
    value: Any = {f"k{n}": {"a": [{"b": n}]} for n in range(size)}
    return lambda: redaction.redact(value)


def a_difference(size: int) -> Step:
    # Cards of more than 16 KiB of arguments, with those of the last call, are made beside the event loop.
    before = {f"k{n}": {"a": [n, {"b": n}]} for n in range(size)}
    after = {f"k{n}": {"a": [n, {"b": -n}]} for n in range(size)}
    return lambda: difference(before, after)


def a_card_of(size: int) -> Card:
    binding = Binding("ann", "s", "t", "sha256:a", "sha256:d", "r1", 10**12)
    approval = Approval("ap_1", "ops", "rules[0]", binding, 0)
    arguments = {"text": "<b>\u202e" * (size // 4), "list": list(range(size // 100))}
    return card(approval, Workflow("ops"), arguments, compile_redaction(["password"]), last_approved={"text": ""})


def rendering_a_card(size: int) -> Step:
    return lambda: (slack_blocks.blocks(made := a_card_of(size), buttons=True), card_json(made))


def names_of(kind: str) -> Callable[[int], Step]:
    texts = {
        "marks": lambda n: "a" + MARKS * (n // 2),
        "marks only when normalized": lambda n: "a" + "\u0301\uff9e" * (n // 2),
        "dotted": lambda n: "\u0130" * n,
        "plain": lambda n: "x" * n,
    }

    def make(size: int) -> Step:
        name = texts[kind](size)
        return lambda: (
            skeleton(name),
            fold(name),
            first_confusable([name, name + "b"]),
            NameTable.build([("s", name)]),
        )

    return make


def a_uri(size: int) -> Step:
    uri = "file://%6cocalhost/" + "%25" * (size // 9) + "/.." * (size // 9) + "\\" * (size // 9)
    return lambda: (normal_form(uri), is_ambiguous(uri))


def a_json_text(kind: str) -> Callable[[int], Step]:
    texts: dict[str, Callable[[int], bytes]] = {
        "deep": lambda n: b"[" * (n // 2) + b"]" * (n // 2),
        "wide": lambda n: b"[" + b"0," * (n // 2) + b"0]",
        "keys": lambda n: b"{" + b",".join(b'"k%d":0' % i for i in range(n // 10)) + b"}",
        "escapes": lambda n: b'"' + b"\\ud83d\\ude00" * (n // 12) + b'"',
        "number": lambda n: b"9" * n,
    }
    reader = wire.MessageReader()

    def make(size: int) -> Step:
        text = texts[kind](size)
        body = b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":' + text + b"}}"
        return lambda: reader.read(body)

    return make


def a_digest(size: int) -> Step:
    text = b"{" + b",".join(b'"k%d":[1.5,"x"]' % i for i in range(size // 20)) + b"}"
    return lambda: digest_of_json(text)


def server_sent_events(line: bytes) -> Callable[[int], Step]:
    def make(size: int) -> Step:
        chunk = (line * (size // len(line) + 1))[:size]
        return lambda: SseParser(16 * MIB).feed(chunk)

    return make


def lines(size: int) -> Step:
    return lambda: LineSplitter(16 * MIB).feed(b"{}\n" * (size // 3))


def a_waterfall(size: int) -> Step:
    spans = [Span(n, n // 2, "call", "tools/call", "<x>" * 1000, "s", "c", n / 1000) for n in range(1, size)]
    return lambda: diagram(spans, size / 1000)


def a_definition(size: int) -> Step:
    tool = {"name": "t", "description": "see other__tool \u200b" * (size // 20), "inputSchema": {"type": "object"}}
    pin = Pin.of("sha256:x", {"name": "t", "description": ""})
    return lambda: compare_pin(PinMode.WARN, tool, pin, [f"other{n}" for n in range(50)])


def a_page(size: int) -> Step:
    items = [b'{"name":"tool"}'] * size
    return lambda: page(EntryList(items), page(EntryList(items), None, 10).next_cursor, 10)


def a_header_schema(size: int) -> Step:
    schema = {"properties": {f"p{n}": {"type": "string", "x-mcp-header": f"P{n}"} for n in range(size)}}
    return lambda: param_headers_of(schema)


def imitated_arguments(size: int) -> Step:
    arguments = {f"a{n}": 1 for n in range(size)}
    schema: dict[str, Any] = {"properties": {f"p{n}": {} for n in range(size)}}
    return lambda: lookalike_property(arguments, schema)


def parameters_with_an_error(size: int) -> Step:
    """Python parses it again to describe the error."""
    code = f"def f({','.join(f'a{n}' for n in range(size // 7))} 1): pass"
    return lambda: parse(code)


CASES = (
    Case("schema: anyOf that doubles", TEXT, a_schema_value("alternatives")),
    Case("schema: bad items", TEXT, a_schema_value("honest")),
    Case("schema: pattern with look-around", TEXT, a_schema_value("look-around")),
    Case("schema: pattern that counts", TEXT, a_schema_value("counted")),
    Case("schema: made ready", TEXT[:3], a_schema),
    Case("schema: patterns made ready", (10, 100, 1_000), a_pattern_schema),
    Case("schema: headers of parameters", SMALL, a_header_schema),
    Case("URI template", (100, 1_000, 4_000, 8_000), a_template),
    Case("URI template: suggestions", SMALL, a_suggestion_by_template),
    Case("URI: normal form", TEXT, a_uri),
    Case("glob", TEXT, a_glob),
    Case("list of patterns", (10, 100, 1_000), a_pattern_list),
    Case("search: tools", (100, 1_000, 5_000), a_search),
    Case("search: words", TEXT, a_search_query),
    Case("search: marks of a title", TEXT, a_title),
    Case(
        "regular expression of a caller",
        TEXT,
        lambda n: lambda: RegexFilter("f", "(a|b)*a.{9}c").matches("ab" * (n // 2)),
    ),
    Case("completion", SMALL, a_completion),
    Case("completion: values of a schema", SMALL, a_suggesting_schema),
    Case("completion: learning", SMALL, learning),
    # A name of at most 128 characters and a value of at most 256 are searched for a completion.
    Case("completion: secrets", (128, 8 * KIB), lambda n: lambda: looks_secret("a" * n, "aB3-" * (n // 4))),
    Case("form: long title", TEXT, lambda n: a_form({"a": {"title": "a" * n}})),
    Case("form: long message", TEXT, lambda n: a_form({"a": {}}, "нет 1 " * (n // 6))),
    Case("form: many fields", TEXT, lambda n: a_form({f"{number:x}": {"title": ""} for number in range(n // 8)})),
    Case("form: many words", TEXT, lambda n: a_form({"aB_" * 5 + f"{number:x}": {} for number in range(n // 20)})),
    Case("redaction", (100, 1_000, 3_000), a_redaction),
    Case("difference of arguments", (100, 500, 1_000), a_difference),
    # Cards of more arguments are made beside the loop, in slices: tests/load/test_large_approvals.py, up to the largest request.
    Case("approval card", (KIB, RENDERED_INLINE_BYTES), rendering_a_card),
    Case("one slice of a large card", (SLICE // 4, SLICE), lambda size: lambda: show_json("<b>\u202e" * (size // 4))),
    Case("name: combining marks", (KIB, 8 * KIB, 64 * KIB), names_of("marks")),
    Case("name: marks after normalization", (KIB, 8 * KIB, 64 * KIB), names_of("marks only when normalized")),
    Case("name: letters that fold to more", (KIB, 8 * KIB, 64 * KIB), names_of("dotted")),
    Case("name: long", TEXT, names_of("plain")),
    Case("arguments beside declared properties", (100, 1_000, 10_000), imitated_arguments),
    Case(
        "members of a request",
        (100, 1_000, 10_000),
        lambda n: lambda: lookalike_member(dict.fromkeys(map(str, range(n)))),
    ),
    Case("JSON: deep", TEXT, a_json_text("deep")),
    Case("JSON: wide", TEXT, a_json_text("wide")),
    Case("JSON: many keys", TEXT, a_json_text("keys")),
    Case("JSON: escapes", TEXT, a_json_text("escapes")),
    Case("JSON: long number", TEXT, a_json_text("number")),
    Case("digest of arguments", (KIB, 32 * KIB, 256 * KIB), a_digest),
    Case("events: many small", (KIB, 32 * KIB, 64 * KIB), server_sent_events(b"data: x\n\n")),
    Case("events: many lines", (KIB, 32 * KIB, 64 * KIB), server_sent_events(b"data: x\r\n")),
    Case("events: one long line", TEXT, server_sent_events(b"data: ")),
    Case("lines of a child", (KIB, 32 * KIB, 64 * KIB), lines),
    Case("waterfall", SMALL, a_waterfall),
    Case("definition compared with its pin", (KIB, 32 * KIB, 256 * KIB), a_definition),
    Case("script: fields of f-strings", SOURCES, lambda n: lambda: parse('f"' + "{a}" * (n // 3) + '"'), PARSED_S),
    Case("script: statements", SOURCES, lambda n: lambda: parse("a;" * (n // 2)), PARSED_S),
    Case("script: small f-strings", SOURCES, lambda n: lambda: parse('f"{a}";' * (n // 7)), PARSED_S),
    Case("script: wrong parameters", LONGEST_PARSED, parameters_with_an_error, PARSED_S),
    Case("script: marks of a name", SOURCES, lambda n: lambda: parse("a" + MARKS * (n // 4)), PARSED_S),
    Case("script: texts without an end", SOURCES, lambda n: lambda: parse("\\'''\n" * (n // 5)), PARSED_S),
    Case("page and cursor", SMALL, a_page),
    Case("address of a peer", TEXT, lambda n: lambda: check_peer_url("https://" + "xn--" * (n // 4) + ".example/")),
    Case("JSON shown to people", TEXT[:3], lambda n: lambda: show_json({"a": "\u202e\U000e0041x" * (n // 8)})),
)
