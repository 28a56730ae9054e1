"""Value types shared by the sections: ids, patterns, URLs, numbers, sizes and durations.

Each is an annotation whose error states the accepted form.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta

from taskgate.core.settings.durations import duration, milliseconds
from taskgate.core.settings.section import DURATION, read_by

MAX_PATTERN = 256
MAX_STARS = 16
MAX_ID = 40
RESERVED_SERVERS = frozenset({"resource", "prompt", "tool"})
RESERVED_SCOPES = frozenset({"v1"})
_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9-])?\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\Z", re.ASCII)
_ORDINARY_PATTERN = re.compile(rf"[A-Za-z0-9_.:/*?-]{{1,{MAX_PATTERN}}}\Z", re.ASCII)
"""Most patterns: none of their characters can be a mistake."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}\Z", re.ASCII)
_SHA256 = re.compile(r"[0-9a-fA-F]{64}\Z", re.ASCII)
_GUESSABLE = frozenset(
    hashlib.sha256(word.encode()).hexdigest()
    for word in ("", "test", "token", "secret", "password", "changeme", "admin", "operator", "taskgate", "hello", "foo")
)


def server_id_fault(text: str) -> str | None:
    """Return why a server id is invalid, or None. Ids contain no `__`, so that `server__tool` can be split unambiguously."""
    if len(text) > MAX_ID:
        return f"is longer than {MAX_ID} characters; for example my-server"
    if not _ID.match(text) or "__" in text:
        return (
            "is not a valid server id: use letters, digits, - and _ (no __, no _ at either end); for example my-server"
        )
    if text in RESERVED_SERVERS:
        return "is reserved (for the patterns resource:, prompt: and tool:); for example my-server"
    return None


def pattern_fault(text: str) -> str | None:
    """Return why a text is not a valid glob, or None."""
    if _ORDINARY_PATTERN.match(text) and text.count("*") <= MAX_STARS:
        return None
    if not text.strip():
        return 'is empty; write a glob such as "read_*", or "*" for everything'
    if len(text) > MAX_PATTERN:
        return f"is longer than {MAX_PATTERN} characters; split it into several patterns"
    if text.count("*") > MAX_STARS:
        return f"has more than {MAX_STARS} stars; split it into several patterns"
    if _CONTROL.search(text):
        return "contains a control character; write a glob on the tool's name"
    if _has_open_bracket(text):
        return 'has an unclosed "["; write "[[]" for a literal bracket'
    return None


def _has_open_bracket(text: str) -> bool:
    position = 0
    while (start := text.find("[", position)) >= 0:
        after = start + (2 if text[start + 1 : start + 2] == "!" else 1)
        end = text.find("]", after + 1)
        if end < 0:
            return True
        position = end + 1
    return False


def _checked(fault: Any) -> Any:
    def check(text: str) -> str:
        message = fault(text)
        if message:
            raise ValueError(message)
        return text

    return check


def _name_fault(text: str) -> str | None:
    if not _NAME.match(text) or len(text) > 64:
        return "may contain letters, digits, and . _ - inside, at most 64 characters; for example code-review"
    return None


def _scope_fault(text: str) -> str | None:
    if text in RESERVED_SCOPES:
        return "is reserved for the address /mcp/v1; choose another name"
    return _name_fault(text)


def _http_url_fault(text: str) -> str | None:
    try:
        parts = urlsplit(text)
        port_is_right = parts.port is None or parts.port > 0
    except ValueError:
        return "is not a URL; write for example https://host.example/mcp"
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_right or re.search(r"\s", text):
        return "is not an http or https URL; write for example https://host.example/mcp"
    return None


def _trace_url_fault(text: str) -> str | None:
    """The id may only be in the path, query or fragment, so that no id changes the host."""
    host = re.split(r"[/?#]", text.partition("://")[2], maxsplit=1)[0]
    if "{trace_id}" not in text or "{" in host or re.search(r"[{}]", text.replace("{trace_id}", "")):
        return "must contain {trace_id} after the host; write for example https://traces.example/trace/{trace_id}"
    return _http_url_fault(text)


def _sha256(text: str) -> str:
    if not _SHA256.match(text):
        raise ValueError("is not a SHA-256 digest of 64 hexadecimal digits; run: taskgate tokens new NAME")
    if text.lower() in _GUESSABLE:
        raise ValueError("is the digest of a guessable token; create a random one: taskgate tokens new NAME")
    return text.lower()


def _headers_fault(headers: dict[str, str]) -> str | None:
    """Return why headers are invalid, or None. The message never contains a value, which may be secret."""
    for name, value in headers.items():
        if not _HEADER_NAME.match(name):
            return f"{name[:40]!a} is not a valid header name; write for example X-Api-Key"
        if _CONTROL.search(value.replace("\t", " ")):
            return f"the value of {name} contains a line break or another control character; write it on one line"
        if not value.isascii() and not _is_latin1(value):
            return f"the value of {name} contains characters outside Latin-1; encode it"
    return None


def _is_latin1(value: str) -> bool:
    return all(ord(character) < 256 for character in value)


def on_off(text: str) -> str:
    """Accept `true` and `false` for `on` and `off`, which YAML 1.1 treats as the same."""
    word = text.lower()
    return {"true": "on", "yes": "on", "false": "off", "no": "off"}.get(word, word)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"\s*(\d{1,15})\s*(b|kb|kib|mb|mib|gb|gib)?\s*", text.lower(), re.ASCII)
    if not found:
        raise ValueError("is not a size in bytes; write for example 4194304, 4MiB or 512KiB")
    scale = {"kb": 10**3, "kib": 2**10, "mb": 10**6, "mib": 2**20, "gb": 10**9, "gib": 2**30}
    return int(found[1]) * scale.get(found[2] or "b", 1)


def _moment(text: str) -> datetime:
    """Read a time with a time zone, or seconds (from 20,000,000,000 on: milliseconds) since 1970."""
    try:
        if re.fullmatch(r"-?\d{1,15}(\.\d{1,6})?", text, re.ASCII):
            number = float(text)
            return datetime.fromtimestamp(number / 1000 if abs(number) > 2e10 else number, UTC)
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found
    except (ValueError, OverflowError, OSError):
        pass
    raise ValueError("is not a time with a time zone; write for example 2027-01-31T00:00:00Z")


Count = Annotated[int, Meta(ge=1)]
Plain = Annotated[Any, Meta(extra={"plain": True})]
"""Texts, lists and maps as they are written."""
Bytes = Annotated[int, Meta(ge=1, extra={"read": _bytes}, extra_json_schema={"unit": "bytes"})]
Money = Annotated[float, Meta(ge=0.0)]
Milliseconds = Annotated[int, Meta(extra={"read": milliseconds}, extra_json_schema={"unit": "milliseconds"})]
Duration = Annotated[float, Meta(extra={"read": duration}, extra_json_schema=DURATION)]
"""In seconds."""
Moment = Annotated[datetime, Meta(tz=True, extra={"read": _moment})]
Pattern = Annotated[str, read_by(_checked(pattern_fault))]
Patterns = Annotated[tuple[Pattern, ...], Meta(extra={"one": True})]
Strings = Annotated[tuple[str, ...], Meta(extra={"one": True})]
ServerId = Annotated[str, read_by(_checked(server_id_fault))]
Name = Annotated[str, read_by(_checked(_name_fault))]
ScopeName = Annotated[str, read_by(_checked(_scope_fault))]
HttpUrl = Annotated[str, read_by(_checked(_http_url_fault))]
TraceUrl = Annotated[str, read_by(_checked(_trace_url_fault))]
HeaderMap = Annotated[dict[str, str], read_by(_checked(_headers_fault))]
Sha256 = Annotated[str, read_by(_sha256)]
