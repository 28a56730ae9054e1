"""URIs in results: links to resources, embedded resources, and contents that were read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from taskgate.core import wire
from taskgate.core.errors import TaskgateError

MARK: Final = b'"uri"'
"""A result without this has no URI. Cheap to search for, also in results that are too large to parse."""
MAX_LINKS: Final = 1_000
MAX_URI: Final = 2_048


def uris_in(result: bytes) -> list[str]:
    """Return the URIs in the result of `tools/call`, `prompts/get` or `resources/read`; at most a thousand."""
    if MARK not in result:
        return []
    try:
        value = wire.parse_strictly(result)
    except TaskgateError:
        return []
    found = {uri: None for uri in _found(value) if 0 < len(uri) <= MAX_URI}
    return list(found)[:MAX_LINKS]


def may_name_uris(result: Mapping[str, Any]) -> bool:
    """Whether `uris_in` may find something in the decoded result."""
    content = result.get("content")
    for block in content if type(content) is list else ():
        if type(block) is dict and block.get("type") in ("resource_link", "resource"):
            return True
    return "messages" in result or "contents" in result


_A_URI: Final = re.compile(rb'"uri"[ \t\r\n]{0,100}+:[ \t\r\n]{0,100}+("(?:[^"\\\x00-\x1f]|\\.){1,8192}+")')


def uris_between(result: bytes, begin: int, end: int) -> list[str]:
    """Return the URIs whose mark begins in this part of a result that is too large to parse. It finds every member
    `uri` at any place, so it may find more than `uris_in`.
    """
    found: dict[str, None] = {}
    at = result.find(MARK, begin, end + len(MARK) - 1)
    while at >= 0 and len(found) < MAX_LINKS:
        matched = _A_URI.match(result, at)
        if matched is not None:
            with suppress(ValueError):
                found[json.loads(matched[1])] = None
        at = result.find(MARK, at + len(MARK), end + len(MARK) - 1)
    return [uri for uri in found if len(uri) <= MAX_URI]


def _found(result: Any) -> Iterator[str]:
    if not isinstance(result, dict):
        return
    for block in _list(result.get("content")):
        yield from _of_block(block)
    for message in _list(result.get("messages")):
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else [content]:
            yield from _of_block(block)
    for block in _list(result.get("contents")):
        yield from _of(block)


def _of_block(block: Any) -> Iterator[str]:
    if isinstance(block, dict) and block.get("type") == "resource_link":
        yield from _of(block)
    elif isinstance(block, dict) and block.get("type") == "resource":
        yield from _of(block.get("resource"))


def _of(holder: Any) -> Iterator[str]:
    uri = holder.get("uri") if isinstance(holder, dict) else None
    if isinstance(uri, str):
        yield uri


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def scheme_of(uri: str) -> str | None:
    """Return the scheme of a URI or URI template, if it has a valid one."""
    scheme, colon, _ = uri.partition(":")
    valid = scheme.isascii() and scheme[:1].isalpha() and all(c.isalnum() or c in "+-." for c in scheme)
    return scheme.lower() if colon and valid else None
