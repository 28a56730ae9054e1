"""One strict reading of JSON and one digest over it, and names that somebody takes for one another."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, lru_cache
from hashlib import sha256
from typing import Any, Final, NoReturn, TypeAlias
from unicodedata import combining, normalize

import msgspec

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


Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class AmbiguousJson(ValueError):
    """JSON that two honest programs could read differently, or that is not JSON at all."""


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """How deep and how many values one document may have."""

    depth: int = 64
    nodes: int = 15_000


DEFAULT_LIMITS = JsonLimits()


def parse_strict(raw: bytes | str, limits: JsonLimits = DEFAULT_LIMITS) -> Json:
    """Read one JSON document, refusing everything ambiguous."""
    try:
        text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
        if text.count("{") > limits.nodes:
            raise AmbiguousJson(f"it holds more than {limits.nodes} values")
        value: Json = _decoder().decode(text)
    except UnicodeDecodeError as error:
        raise AmbiguousJson("the text is not UTF-8") from error
    except RecursionError as error:
        raise AmbiguousJson("it is nested too deeply") from error
    except AmbiguousJson:
        raise
    except ValueError as error:
        raise AmbiguousJson(f"it is not JSON: {error}") from error
    check(value, limits)
    return value


@cache
def _decoder() -> json.JSONDecoder:
    """Making one costs more than most documents."""
    return json.JSONDecoder(
        object_pairs_hook=_unambiguous_object, parse_constant=_refuse_constant, parse_float=_exact_float
    )


def check(value: object, limits: JsonLimits = DEFAULT_LIMITS) -> None:
    """Refuse a value that was not read by `parse_strict` and breaks its rules. Level by level, so depth cannot exhaust the
    stack."""
    count, depth = 0, 0
    level: list[object] = [value]
    while level:
        count += len(level)
        depth += 1
        if count > limits.nodes:
            raise AmbiguousJson(f"it holds more than {limits.nodes} values")
        deeper: list[object] = []
        for item in level:
            if isinstance(item, dict | list):
                if depth > limits.depth:
                    raise AmbiguousJson(f"it is nested deeper than {limits.depth} levels")
                deeper.extend(_children(item))
            elif type(item) is not int and item is not None:
                _check_scalar(item)
        level = deeper


_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(value: object) -> bytes:
    """The bytes that stand for a value: keys sorted, no spaces, UTF-8 as it is. Takes values that passed `check`."""
    try:
        return _ENCODER.encode(value).encode("utf-8")
    except UnicodeEncodeError as error:
        raise AmbiguousJson("a string holds half of a surrogate pair") from error
    except ValueError as error:
        raise AmbiguousJson("a number is not finite") from error


def digest(value: object) -> str:
    """The digest of a value that was read strictly (or passed `check`)."""
    return digest_of_bytes(canonical(value))


def digest_of_json(raw: bytes | str) -> str:
    """Read strictly and digest in one step."""
    quick = _canonical_of_flat(raw) if isinstance(raw, bytes) else None
    return digest(parse_strict(raw)) if quick is None else digest_of_bytes(quick)


_QUICK_BYTES: Final = 4096
_read_quickly: Final = msgspec.json.Decoder().decode
_write_quickly: Final = msgspec.json.Encoder(order="sorted").encode


def _canonical_of_flat(raw: bytes) -> bytes | None:
    """The canonical bytes of a small object of ASCII strings, whole numbers, true, false and null, in half of the time: most
    arguments are like that. None for everything else, and for what must be looked at more closely.
    """
    if len(raw) > _QUICK_BYTES or not raw.isascii() or raw.count(b"{") != 1 or b"[" in raw or b"\\u" in raw:
        return None
    try:
        value = _read_quickly(raw)
    except msgspec.DecodeError:
        return None
    # With as many colons as names no name was there twice.
    if type(value) is not dict or len(value) != raw.count(b":") or len(value) != len(set(map(str.lower, value))):
        return None
    return None if float in map(type, value.values()) else _write_quickly(value)


def digest_of_bytes(raw: bytes) -> str:
    """The digest of exactly these bytes."""
    return "sha256:" + sha256(raw).hexdigest()


def _children(item: dict[Any, Any] | list[Any]) -> list[Any]:
    if isinstance(item, list):
        return item
    if set(map(type, item)) <= {str} and all(map(str.isascii, item)):
        if len(item) > 1:
            _refuse_twins(item)
        return list(item.values())
    for key in item:
        if not isinstance(key, str):
            raise AmbiguousJson("an object has a key that is not a string")
        _check_scalar(key)
    if len(item) > 1:
        _refuse_twins(item)
    return list(item.values())


def _check_scalar(item: object) -> None:
    if isinstance(item, str):
        if not item.isascii():
            try:
                item.encode("utf-8")
            except UnicodeEncodeError as error:
                raise AmbiguousJson("a string holds half of a surrogate pair") from error
    elif isinstance(item, float):
        if item != item or item in (float("inf"), float("-inf")):
            raise AmbiguousJson("a number is not finite")
    elif item is not None and not isinstance(item, int):
        raise AmbiguousJson(f"{type(item).__name__} is not a JSON value")


def _unambiguous_object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise AmbiguousJson("an object has the same key twice")
    return made


def _refuse_twins(item: dict[str, Any]) -> None:
    found = first_confusable(item)
    if found is not None:
        raise AmbiguousJson(f"the keys {found[0]!r} and {found[1]!r} differ only by case or by Unicode form")


def _refuse_constant(name: str) -> NoReturn:
    raise AmbiguousJson(f"{name} is not a JSON number")


def _exact_float(text: str) -> float:
    number = float(text)
    if repr(number) == text:
        return number
    # 1e400 is infinity here and an error or a big number elsewhere; 0.1000000000000000055 is 0.1 in one language and
    # itself in another.
    if number in (float("inf"), float("-inf")) or Decimal(repr(number)) != Decimal(text):
        raise AmbiguousJson("a number does not fit a 64-bit float exactly")
    return number
