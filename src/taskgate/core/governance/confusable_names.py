"""Names that somebody takes for one another: people, lenient servers, other parsers.

Two questions. *Confusable* are listed names or JSON keys that are equal after Unicode compatibility folding and case folding, yet
not the same string: `{"amount": 5, "Amount": 500}` means two things to two programs, so the strict JSON reader, the catalogue and
the policy engine refuse them. Names *look alike* when they have one skeleton: letter case, spaces, unseen characters, accents,
compatibility forms and letters of other scripts that are drawn like Latin ones tell nothing apart; `-` and `_` do. A name that a
server never listed is judged under its skeleton as well, because the server may answer to it under that name.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final
from unicodedata import combining, normalize

# Beyond this no server's name is meant, and no time is spent on finding out which.
MAX_NAME: Final = 4096

_UNSEEN: Final = ("Cf", "Cc", "Cs", "Co", "Cn", "Mn", "Me", "Zs", "Zl", "Zp")
_ASCII_UNSEEN: Final = dict.fromkeys([*range(0x21), 0x7F])
# Capitals that look like other Latin letters than their small forms do.
_CAPITALS: Final = str.maketrans("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "abezhikmnoptyx")
# After case folding: letters that are drawn like a Latin one in most typefaces.
_DRAWN_LIKE: Final = str.maketrans(
    "авгԁеһіїјкӏмнопрсԛѕтѵԝхуүзь" + "αβγδεηικνοπρστυφχωϲϳ" + "ոսօցզհյ" + "ıɑɡɩʋøłđħ" + "ⲟⲣⲥⲭᴀᴄᴅᴇᴊᴋᴍɴᴏᴘᴛᴜᴠᴡᴢ",
    "abrdehiijklmhonpcqstvwxyy3b" + "abydenikvonpotuoxwcj" + "nuogqhj" + "iagiuoldh" + "opcxacdejkmnoptuvwz",
)


def skeleton(name: str) -> str:
    """What a name looks like. Equal skeletons, look-alike names. Longer names than any server's are cut."""
    if len(name) > MAX_NAME:
        name = name[:MAX_NAME]
    if name.isascii():
        return name.translate(_ASCII_UNSEEN).lower()
    return _skeleton(name)


@lru_cache(maxsize=4096)
def _skeleton(name: str) -> str:
    # Marks go first: to sort a long run of them costs normalization the square of its length.
    plain = unicodedata.normalize("NFKD", "".join(map(_seen, name))).translate(_CAPITALS).casefold()
    # Folding can bring forth letters that decompose again.
    plain = unicodedata.normalize("NFKD", plain).casefold()
    return "".join(map(_seen, plain)).translate(_DRAWN_LIKE)


def _seen(character: str) -> str:
    category = unicodedata.category(character)
    if category in _UNSEEN:
        return ""
    if category == "Pc":
        return "_"
    return "-" if category == "Pd" or character == "\u2212" else character


def resembles(name: str, known: Iterable[str]) -> str | None:
    """The first known name that `name` looks like, itself included; None if it looks like none of them."""
    wanted = skeleton(name)
    return next((other for other in known if skeleton(other) == wanted), None)


def skeletons(names: Iterable[str]) -> frozenset[str]:
    """The skeletons of many names, for whoever has many names to compare with them."""
    return frozenset(map(skeleton, names))


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
