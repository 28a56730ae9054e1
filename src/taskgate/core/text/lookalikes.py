"""Skeletons: names that look alike to a reader have equal skeletons.

Letter case, spaces, invisible characters, accents, compatibility forms, and letters of other scripts that are drawn
like Latin letters make no difference; `-` and `_` do. A name that a server did not list is also judged by its skeleton,
because the server may accept it as a spelling of a listed name.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

# Names that somebody takes for one another: people, lenient servers, other parsers.
#
# Two questions. *Confusable* are listed names or JSON keys that are equal after Unicode compatibility folding and case
# folding, yet not the same string: `{"amount": 5, "Amount": 500}` means two things to two programs, so the strict JSON
# reader, the catalogue and the policy engine refuse them. Names *look alike* when they have one skeleton: letter case,
# spaces, unseen characters, accents, compatibility forms and letters of other scripts that are drawn like Latin ones
# tell nothing apart; `-` and `_` do. A name that a server never listed is judged under its skeleton as well, because
# the server may answer to it under that name.

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


def skeletons(names: Iterable[str]) -> frozenset[str]:
    """The skeletons of many names, for whoever has many names to compare with them."""
    return frozenset(map(skeleton, names))
