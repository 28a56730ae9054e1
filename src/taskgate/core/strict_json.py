"""Strict JSON: parse a document or reject everything ambiguous in it, and encode a value canonically."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import cache
from typing import Any, Final, NoReturn, TypeAlias

import msgspec

from taskgate.core.text.confusables import first_confusable
from taskgate.mcp.json_errors import UNDECODABLE

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class AmbiguousJson(ValueError):
    """JSON that two correct programs could read differently, or that is not JSON."""


class JsonLimits(msgspec.Struct, frozen=True):
    """Limits on the depth and the number of values of a document."""

    depth: int = 64
    nodes: int = 15_000


DEFAULT_LIMITS = JsonLimits()


def parse_strict(raw: bytes | str, limits: JsonLimits = DEFAULT_LIMITS) -> Json:
    """Parse a JSON document. Raises AmbiguousJson."""
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
    """Cached: creating one costs more than parsing most documents."""
    return json.JSONDecoder(
        object_pairs_hook=_unambiguous_object, parse_constant=_refuse_constant, parse_float=_exact_float
    )


def check(value: object, limits: JsonLimits = DEFAULT_LIMITS) -> None:
    """Raise AmbiguousJson if a value that was not parsed by `parse_strict` violates its rules. Works level by level, so
    depth cannot exhaust the stack.
    """
    count, depth = 0, 0
    level: list[object] = [value]
    while level:
        count += len(level)
        depth += 1
        if count > limits.nodes:
            raise AmbiguousJson(f"it holds more than {limits.nodes} values")
        deeper: list[object] = []
        for item in level:
            if type(item) is str and item.isascii():
                continue
            if isinstance(item, (dict, list)):
                if depth > limits.depth:
                    raise AmbiguousJson(f"it is nested deeper than {limits.depth} levels")
                deeper.extend(_children(item))
            elif type(item) is not int and item is not None:
                _check_scalar(item)
        level = deeper


_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(value: object) -> bytes:
    """Return the canonical bytes of a value: sorted keys, no spaces, UTF-8. The value must have passed `check`."""
    quick = _canonical_if_plain(value)
    if quick is not None:
        return quick
    try:
        return _ENCODER.encode(value).encode("utf-8")
    except UnicodeEncodeError as error:
        raise AmbiguousJson("a string holds half of a surrogate pair") from error
    except ValueError as error:
        raise AmbiguousJson("a number is not finite") from error


def _canonical_if_plain(value: object) -> bytes | None:
    """Return the canonical bytes of a value without floats and large integers, in a fifth of the time; None for others.

    Only these are written differently by the two encoders. A value that differs after encoding and decoding contains something
    that is not a JSON type.
    """
    try:
        raw = _write_sorted(value)
        is_plain = _read_without_floats(raw) == value
    except (TypeError, ValueError, OverflowError, *UNDECODABLE):
        return None
    return raw if is_plain else None


def _refuse_float(text: str) -> NoReturn:
    raise ValueError(text)


_write_sorted: Final = msgspec.json.Encoder(order="sorted").encode
_read_without_floats: Final = msgspec.json.Decoder(float_hook=_refuse_float).decode


class CompactJson(msgspec.Struct, frozen=True):
    value: Any
    canonical: bytes


def read_compact(raw: bytes) -> CompactJson | None:
    """Decode a document and return its canonical bytes too, with one decoding and one encoding. None if it has floats, is not
    written as short as possible, or is not JSON: such a document must be parsed by `wire.parse_strictly`.

    Every value but a float is encoded as short as it can be written. So a document of the same length, in whatever order, has
    no duplicate key, no spaces, and no escapes that could be written in another way.
    """
    try:
        value = _read_without_floats(raw)
        ordered = _write_sorted(value)
    except (TypeError, ValueError, OverflowError, *UNDECODABLE):
        return None
    return CompactJson(value, ordered) if len(ordered) == len(raw) else None


def is_unambiguous_ascii(value: object, raw: bytes) -> bool:
    """Return whether `check` certainly accepts a value whose JSON is `raw`. False means that `check` must be called.

    The bytes must be ASCII without a backslash.
    """
    try:
        return not _is_large(raw) and _read(raw) == value and _has_distinct_names(raw)
    except (ValueError, *UNDECODABLE):
        return False


def is_unambiguous_json(raw: bytes) -> bool:
    """Return whether `check` certainly accepts the document in these bytes. False means that it must be parsed, and `check` called.

    The bytes must be JSON in ASCII without a backslash. Most have no floats: they need to be read only in lower case, where names
    that differ only by case are duplicate keys (see `read_compact`).
    """
    if _is_large(raw):
        return False
    try:
        return len(_write(_read_without_floats(raw.lower()))) == len(raw)
    except (ValueError, *UNDECODABLE):
        return _is_unambiguous_with_floats(raw)


def _is_unambiguous_with_floats(raw: bytes) -> bool:
    try:
        return _write(_read(raw)) == raw and _has_distinct_names(raw)
    except (ValueError, *UNDECODABLE):
        return False


def _is_large(raw: bytes) -> bool:
    return len(raw) > DEFAULT_LIMITS.nodes or raw.count(b"{") + raw.count(b"[") > DEFAULT_LIMITS.depth


def _has_distinct_names(raw: bytes) -> bool:
    """Return whether no object has two names that differ only by case, in bytes that are written again alike.

    Names that are equal in lower case leave fewer bytes when everything is read again in lower case.
    """
    return len(_write(_read(raw.lower()))) == len(raw)


_write: Final = msgspec.json.Encoder().encode
_read: Final = msgspec.json.Decoder().decode


def _children(item: dict[Any, Any] | list[Any]) -> list[Any]:
    if isinstance(item, list):
        return item
    if set(map(type, item)) <= {str} and all(map(str.isascii, item)):
        if len(set(map(str.lower, item))) < len(item):
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
    # 1e400 is infinity here and an error or a big number elsewhere; 0.1000000000000000055 is 0.1 in some languages and
    # itself in others.
    if number in (float("inf"), float("-inf")) or Decimal(repr(number)) != Decimal(text):
        raise AmbiguousJson("a number does not fit a 64-bit float exactly")
    return number
