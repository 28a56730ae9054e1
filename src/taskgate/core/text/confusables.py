"""Confusable names: different strings that are equal after Unicode compatibility folding and case folding.

`{"amount": 5, "Amount": 500}` means different things to different programs. The strict JSON reader, the catalog and the
policy engine therefore reject confusable names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final
from unicodedata import combining, normalize

MAX_MARKS = 30
MAX_FOLDED = 4096
_BECOME_MARKS: Final = frozenset("\u0f73\u0f75\u0f81\uff9e\uff9f")
"""Characters that are no combining marks by their class, and consist of marks once they are normalized."""


def fold(name: str) -> str:
    """Return the form in which confusable names are equal."""
    if name.isascii():
        return name.lower()
    # The rest is compared without folding: folding megabytes would block the event loop.
    head, rest = name[:MAX_FOLDED], name[MAX_FOLDED:]
    return normalize("NFKC", normalize("NFKC", limit_combining_marks(head)).casefold()) + rest


def limit_combining_marks(text: str) -> str:
    """Return the text with at most 30 combining marks in a row: sorting them takes quadratic time.

    Thirty is the limit of Unicode's stream-safe format; no script needs more. Texts that differ only beyond it are
    confusable.
    """
    if len(text) <= MAX_MARKS:
        return text
    kept: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if combining(character) or character in _BECOME_MARKS else 0
        if marks <= MAX_MARKS:
            kept.append(character)
    return "".join(kept)


def first_confusable(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first two different names that fold to the same form, or None. A repeated identical name does not
    count.
    """
    listed = list(names)
    if all(map(str.isascii, listed)) and len(set(map(str.lower, listed))) == len(set(listed)):
        return None
    seen: dict[str, str] = {}
    for name in listed:
        other = seen.setdefault(fold(name), name)
        if other != name:
            return other, name
    return None


def lookalike_property(arguments: Mapping[str, Any], input_schema: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (argument name, property name) if the name of an argument is confusable with a declared property of the
    tool.

    A lone `Amount` next to a declared `amount` would evade a policy that checks `amount`, and still reach a server that
    ignores case.
    """
    properties = input_schema.get("properties")
    if not isinstance(properties, Mapping):
        return None
    return _lookalike(arguments, properties, {fold(name): name for name in properties})


CHECKED_MEMBERS: Final = frozenset(
    {
        "name",
        "arguments",
        "uri",
        "ref",
        "type",
        "argument",
        "context",
        "task",
        "_meta",
        "inputResponses",
        "requestState",
    }
)
"""Members of requests that decide what is called, and with which arguments."""
_FOLDED: Final = {fold(name): name for name in CHECKED_MEMBERS}


def lookalike_member(params: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (member, imitated member) if a member of a request is confusable with one that the gateway checks.

    Unknown members are passed on, and a server that ignores case would read `Name` as `name`.
    """
    for members in (params, params.get("ref")):
        if type(members) is dict and not members.keys() <= CHECKED_MEMBERS:
            found = _lookalike(members, CHECKED_MEMBERS, _FOLDED)
            if found is not None:
                return found
    return None


def _lookalike(names: Iterable[str], known: Collection[str], folded: Mapping[str, str]) -> tuple[str, str] | None:
    """Each name is folded once, because peers choose the number of names on both sides."""
    for name in names:
        if name not in known and (other := folded.get(fold(name))) is not None:
            return name, other
    return None
