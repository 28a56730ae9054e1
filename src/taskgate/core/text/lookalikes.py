"""Skeletons: names that look alike to a reader have equal skeletons.

Letter case, spaces, invisible characters, accents, compatibility forms, and letters of other scripts that are drawn like Latin
letters make no difference; `-` and `_` do. Rules are also applied to the skeleton of a name that a server did not list, because
the server may accept it as a spelling of a listed name.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from taskgate.core.text.latin_lookalikes import LOOKALIKES
from taskgate.core.text.plain_text import is_blank

# Servers do not have longer names, and longer input would take too long.
MAX_NAME: Final = 4096

_UNSEEN: Final = ("Cf", "Cc", "Cs", "Co", "Cn", "Mn", "Me", "Zs", "Zl", "Zp")
_ASCII_UNSEEN: Final = dict.fromkeys([*range(0x21), 0x7F])
# Capital letters that look like other Latin letters than their lower-case forms do.
CAPITALS: Final = str.maketrans("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "abezhikmnoptyx")
# After case folding: letters that are drawn like a Latin one in most typefaces, also those that only resemble one.
DRAWN_LIKE: Final = {
    ord(folded): like for like, letters in LOOKALIKES.items() for folded in letters.casefold()
} | str.maketrans(
    "авгԁеһіїјкӏмнопрсԛѕтѵԝхуүзь" + "αβγδεηικνοπρστυφχωϲϳ" + "ոսօցզհյ" + "ıɑɡɩʋøłđħ" + "ⲟⲣⲥⲭᴀᴄᴅᴇᴊᴋᴍɴᴏᴘᴛᴜᴠᴡᴢ",
    "abrdehiijklmhonpcqstvwxyy3b" + "abydenikvonpotuoxwcj" + "nuogqhj" + "iagiuoldh" + "opcxacdejkmnoptuvwz",
)


def skeleton(name: str) -> str:
    """Return the skeleton of a name. Names beyond the maximum length are cut."""
    if len(name) > MAX_NAME:
        name = name[:MAX_NAME]
    if name.isascii():
        return name.translate(_ASCII_UNSEEN).lower()
    return _skeleton(name)


@lru_cache(maxsize=4096)
def _skeleton(name: str) -> str:
    # Remove marks first: normalization takes quadratic time to sort a long run of them.
    plain = unicodedata.normalize("NFKD", "".join(map(_seen, name))).translate(CAPITALS).casefold()
    # Folding can produce letters that decompose again.
    plain = unicodedata.normalize("NFKD", plain).casefold()
    return "".join(map(_seen, plain)).translate(DRAWN_LIKE)


def _seen(character: str) -> str:
    category = unicodedata.category(character)
    if category in _UNSEEN or is_blank(character):
        return ""
    if category == "Pc":
        return "_"
    return "-" if category == "Pd" or character == "\u2212" else character


def skeletons(names: Iterable[str]) -> frozenset[str]:
    """Return the skeletons of many names."""
    return frozenset(map(skeleton, names))
