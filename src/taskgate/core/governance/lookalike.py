"""Names that a reader, or a lenient server, takes for one another: what they look like, and which known name is meant.

Two names look alike when they have one skeleton: letter case, spaces, unseen characters, accents, compatibility forms
(full-width letters) and letters of other scripts that are drawn like Latin ones tell nothing apart. `-` and `_` do. A
name that a server never listed is judged under its skeleton as well, because the server may answer to it under that
name. `confusable_names` is the stricter question whether two *listed* names or two JSON keys collide.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

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
