"""What is pinned of an interface, and how a change of it is shown."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from taskgate.core.catalog.pin import Accepted, FirstSeen, Pin, PinChanged, PinMode, definition_digest
from taskgate.core.catalog.pin_keys import kind_of, resource_key, risk_key
from taskgate.core.catalog.pinned_content import (
    KEPT_TEXT,
    SHOWN_LINES,
    SHOWN_TEXT,
    changed_definition,
    compare_content,
    content_bytes,
    content_definition,
    content_difference,
    sha256_of,
)

URI = "ui://clock/app.html"


def page(text: str, **more: Any) -> dict[str, Any]:
    return content_definition(URI, [{"uri": URI, "mimeType": "text/html;profile=mcp-app", "text": text, **more}])


def test_text_and_base64_of_the_same_bytes_are_one_content() -> None:
    assert content_bytes({"text": "hé"}) == content_bytes({"blob": base64.b64encode("hé".encode()).decode()})
    assert content_bytes({"blob": "not base64!"}) is None
    assert content_bytes({"uri": "x"}) is None


def test_a_definition_has_every_setting_and_the_digest_of_every_byte() -> None:
    made = page("<p>", _meta={"ui": {"csp": {"connectDomains": ["https://a.example"]}}})
    assert made == {
        "uri": URI,
        "contents": [
            {
                "mimeType": "text/html;profile=mcp-app",
                "_meta": {"ui": {"csp": {"connectDomains": ["https://a.example"]}}},
                "bytes": 3,
                "digest": sha256_of(b"<p>"),
                "text": "<p>",
            }
        ],
    }
    long = page("x" * (KEPT_TEXT + 1))["contents"][0]
    assert "text" not in long
    assert long["digest"] == sha256_of(b"x" * (KEPT_TEXT + 1))
    listed = content_definition(URI, [], {"uri": URI, "_meta": {"ui": {}}})
    assert listed == {"uri": URI, "contents": [], "listed": {"uri": URI, "_meta": {"ui": {}}}}
    assert content_definition(URI, [7, {"blob": "?"}])["contents"] == [7, {"blob": "?"}]


@pytest.mark.parametrize("mode", [PinMode.WARN, PinMode.ENFORCE])
def test_a_changed_byte_or_setting_is_a_change(mode: PinMode) -> None:
    first = page("<p>one</p>")
    pin = Pin.of(definition_digest(first), first)
    assert compare_content(mode, first, None) == FirstSeen(pin.digest, ())
    assert compare_content(mode, page("<p>one</p>"), pin) == Accepted(pin.digest)
    for other in (page("<p>two</p>"), page("<p>one</p>", _meta={"ui": {"permissions": {"camera": {}}}})):
        found = compare_content(mode, other, pin)
        assert isinstance(found, PinChanged)
        assert found.quarantined is (mode is PinMode.ENFORCE)
        assert found.changes
    assert isinstance(compare_content(PinMode.OFF, page("x"), pin), Accepted)


def change(before: str, after: str) -> tuple[str, str]:
    found = content_difference(page(before), page(after))
    (text,) = [each for each in found.changes if each.path == "contents.0.text"]
    return text.before, text.after


def test_only_changed_lines_of_a_long_text_are_shown() -> None:
    lines = [f"line {n}" for n in range(100)]
    changed = [*lines[:50], "evil()", *lines[51:]]
    assert change("\n".join(lines), "\n".join(changed)) == ("(line 51)\nline 50", "(line 51)\nevil()")
    assert change("a\nb", "a\nb\nc") == ("(line 3)", "(line 3)\nc")
    assert change("b", "a\nb") == ("", "a")
    assert change("", "a") == ("", "a")
    before, after = change("start", "\n".join(f"new {n}" for n in range(SHOWN_LINES + 5)))
    assert before == "start"
    assert after.endswith("(5 more lines)")
    assert len(change("a", "b" * (SHOWN_TEXT + 10))[1]) < SHOWN_TEXT + 100


def test_other_changes_are_bounded_too() -> None:
    found = content_difference(page("x"), page("x", note="y" * (SHOWN_TEXT + 10), size=3))
    values = {each.path: each.after for each in found.changes}
    assert values["contents.0.note"].endswith("(10 characters more)")
    assert values["contents.0.size"] == 3


def test_a_changed_interface_is_another_definition() -> None:
    assert changed_definition("sha256:a", "sha256:b") != changed_definition("sha256:a", "sha256:c")


def test_pin_keys_contain_their_kind() -> None:
    assert risk_key("pay") not in ("pay", resource_key("pay"))
    assert [kind_of(key) for key in ("t", resource_key("ui://x"), "skill:skill://x/SKILL.md")] == [
        "tool",
        "interface",
        "skill",
    ]
