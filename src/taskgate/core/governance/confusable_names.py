"""Names that look alike to somebody: equal after Unicode compatibility folding and case folding, yet not the same
string.

Some parsers and some servers match names without regard to case, so `{"amount": 5, "Amount": 500}` means two things
to two programs. The rule is the same everywhere: confusable are either one and the same string or they are refused. This
module only finds them; the strict JSON reader, the catalogue and the policy engine refuse them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any
from unicodedata import combining, normalize

MAX_MARKS = 30
MAX_FOLDED = 4096


def fold(name: str) -> str:
    """The form under which confusable are equal."""
    if name.isascii():
        return name.lower()
    # What stands far behind tells names apart as it is: to fold megabytes would hold everybody up.
    head, rest = name[:MAX_FOLDED], name[MAX_FOLDED:]
    return normalize("NFKC", normalize("NFKC", without_piles(head)).casefold()) + rest


def without_piles(text: str) -> str:
    """The text with no more than a few combining marks in a row: sorting them costs the square of their number.

    Thirty is what Unicode calls stream-safe; no script needs as many. Texts that differ only beyond it are confusable.
    """
    if len(text) <= MAX_MARKS:
        return text
    kept: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if combining(character) else 0
        if marks <= MAX_MARKS:
            kept.append(character)
    return "".join(kept)


def first_confusable(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two different names that fold to one, or None. A repeated identical name does not count."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(fold(name), name)
        if other != name:
            return other, name
    return None


def confusable(names: Iterable[str]) -> frozenset[str]:
    """Every name that can be taken for one of the others."""
    groups: dict[str, set[str]] = {}
    for name in names:
        groups.setdefault(fold(name), set()).add(name)
    return frozenset(name for group in groups.values() if len(group) > 1 for name in group)


def confusable_with(name: str, known: Collection[str]) -> str | None:
    """A known name that `name` imitates without being it."""
    if name in known:
        return None
    folded = fold(name)
    return next((other for other in known if fold(other) == folded), None)


def imitated_property(arguments: Mapping[str, Any], input_schema: Mapping[str, Any]) -> tuple[str, str] | None:
    """An argument whose name imitates a property the tool declares: (what was sent, what it imitates).

    A lone `Amount` next to a declared `amount` would slip past a policy that looks at `amount` and still reach a
    server that does not care about case.
    """
    properties = input_schema.get("properties")
    if not isinstance(properties, Mapping):
        return None
    for name in arguments:
        if (other := confusable_with(name, properties)) is not None:
            return name, other
    return None
