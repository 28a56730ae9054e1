"""Secrets of the configuration, and their removal from text and from values that are shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from taskgate.core.redaction.fields import HIDDEN
from taskgate.core.text.confusables import fold

SHORTEST_IN_TEXT = 6
"""Shorter values are hidden only as a whole value: inside a text they cannot be distinguished from ordinary words."""
LONGEST_NEEDLE = 24
"""Messages truncate what they quote, so this much of the beginning of a longer value is removed as well."""
_SECRET_NAMES = (
    *("secret", "token", "password", "passwd", "passphrase", "key", "authorization", "credential", "cookie", "bearer"),
    *("private", "sha256"),
)
_SECRET_MAPS = frozenset({"headers", "env"})


class SecretValues:
    """Secrets of a configuration: values that came from references, and fields with secret names."""

    __slots__ = ("_needles", "values")

    def __init__(self, values: Iterable[str]) -> None:
        self.values = frozenset(value for value in values if value)
        forms = {form for value in self.values for form in (value, json.dumps(value)[1:-1], quote(value, safe=""))}
        # Longest first, so that removing a value that is part of another does not leave the rest of the longer one.
        long_enough = (form for form in forms if len(form) >= SHORTEST_IN_TEXT)
        self._needles = tuple(sorted(long_enough, key=lambda form: (-len(form), form)))

    def text(self, text: str) -> str:
        """Return the text without any of the values, or the beginning of a truncated one."""
        for needle in self._needles:
            text = _without(text, needle)
        return text

    def shown(self, value: Any, name: str = "") -> Any:
        """Return plain data that is safe to show, of a configuration or of the part of it under the key `name`."""
        if isinstance(value, Mapping):
            hide_all = name in _SECRET_MAPS
            return {str(key): HIDDEN if hide_all else self.shown(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.shown(item, name) for item in value]
        if value is None or isinstance(value, bool):
            return value
        if str(value) in self.values:
            return HIDDEN
        if isinstance(value, int | float):
            return value
        return HIDDEN if has_secret_name(name) else self.text(_without_user(str(value)))


def has_secret_name(name: str) -> bool:
    """Whether a field with this name is likely to hold a secret."""
    folded = fold(name)
    return any(word in folded for word in _SECRET_NAMES)


def _without(text: str, needle: str) -> str:
    begin = needle[:LONGEST_NEEDLE]
    at = text.find(begin)
    while at >= 0:
        end = at + len(begin)
        while end < len(text) and end - at < len(needle) and text[end] == needle[end - at]:
            end += 1
        text = text[:at] + HIDDEN + text[end:]
        at = text.find(begin, at + len(HIDDEN))
    return text


def _without_user(text: str) -> str:
    """URLs may have a password between the scheme and the host."""
    scheme, mark, rest = text.partition("://")
    before, at, after = rest.partition("@")
    return f"{scheme}://{HIDDEN}@{after}" if mark and at and "/" not in before else text
