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


def fold(name: str) -> str:
    """The form in which confusable names are equal."""
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
    listed = list(names)
    if all(map(str.isascii, listed)) and len(set(map(str.lower, listed))) == len(set(listed)):
        return None
    seen: dict[str, str] = {}
    for name in listed:
        other = seen.setdefault(fold(name), name)
        if other != name:
            return other, name
    return None


def imitated_property(arguments: Mapping[str, Any], input_schema: Mapping[str, Any]) -> tuple[str, str] | None:
    """An argument whose name imitates a property the tool declares: (what was sent, what it imitates).

    A lone `Amount` next to a declared `amount` would slip past a policy that looks at `amount` and still reach a
    server that does not care about case.
    """
    properties = input_schema.get("properties")
    if not isinstance(properties, Mapping):
        return None
    return _imitated(arguments, properties, {fold(name): name for name in properties})


JUDGED: Final = frozenset(
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
"""Members of requests that decide what is called, and with what."""
_FOLDED: Final = {fold(name): name for name in JUDGED}


def imitated_member(params: Mapping[str, Any]) -> tuple[str, str] | None:
    """A member of a request that imitates one by which it is judged: (what was sent, what it imitates).

    What the gateway does not know is passed on, and a server that does not care about case would take `Name` for `name`.
    """
    for members in (params, params.get("ref")):
        if type(members) is dict and not members.keys() <= JUDGED:
            found = _imitated(members, JUDGED, _FOLDED)
            if found is not None:
                return found
    return None


def _imitated(names: Iterable[str], known: Collection[str], folded: Mapping[str, str]) -> tuple[str, str] | None:
    """Each name is folded once, because peers choose how many there are on either side."""
    for name in names:
        if name not in known and (other := folded.get(fold(name))) is not None:
            return name, other
    return None
