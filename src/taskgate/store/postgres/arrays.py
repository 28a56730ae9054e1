"""Arrays as statement parameters, in PostgreSQL's binary format.

A batch passes its rows as one array per column. The driver can encode Python lists itself, but it determines the type of every
element first and then encodes each one through several function calls. Here the type is known from the statement, which takes a
third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, pack
from typing import Any, Final

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_DIMENSIONS: Final = 1
_LOWER_BOUND: Final = 1
_HEADER: Final = Struct("!iiIii").pack
_LENGTH: Final = Struct("!i").pack
_NULL: Final = _LENGTH(-1)
_TEXT, _BIGINT, _BYTEA = 25, 20, 17
"""Object ids of the element types."""


class TextArray(bytes):
    """`text[]`"""


class BigintArray(bytes):
    """`bigint[]`; a cast in the statement makes other integers of it."""


class ByteaArray(bytes):
    """`bytea[]`"""


class _Encoded(Dumper):
    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


class _TextDumper(_Encoded):
    oid = 1009


class _BigintDumper(_Encoded):
    oid = 1016


class _ByteaDumper(_Encoded):
    oid = 1001


psycopg.adapters.register_dumper(TextArray, _TextDumper)
psycopg.adapters.register_dumper(BigintArray, _BigintDumper)
psycopg.adapters.register_dumper(ByteaArray, _ByteaDumper)


def text_array(values: Sequence[str | None]) -> TextArray:
    return TextArray(_joined(_TEXT, [None if value is None else value.encode() for value in values]))


def bytea_array(values: Sequence[bytes | None]) -> ByteaArray:
    return ByteaArray(_joined(_BYTEA, values))


def bigint_array(values: Sequence[int | None]) -> BigintArray:
    if None in values:
        return BigintArray(_joined(_BIGINT, [None if value is None else pack("!q", value) for value in values]))
    elements = [8] * (2 * len(values))
    elements[1::2] = values  # type: ignore[assignment]
    return BigintArray(_header(_BIGINT, len(values), has_null=False) + pack("!" + "iq" * len(values), *elements))


def _header(element: int, count: int, *, has_null: bool) -> bytes:
    return _HEADER(_DIMENSIONS, has_null, element, count, _LOWER_BOUND) if count else _HEADER(0, 0, element, 0, 0)[:12]


def _joined(element: int, values: Sequence[bytes | None]) -> bytes:
    parts = [_header(element, len(values), has_null=None in values)]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            parts += (_LENGTH(len(value)), value)
    return b"".join(parts)


ENCODERS: Final[dict[str, Callable[[Sequence[Any]], bytes]]] = {
    "text": text_array,
    "bytea": bytea_array,
    "bigint": bigint_array,
    "smallint": bigint_array,
    "integer": bigint_array,
}
"""By the element type that a statement casts the parameter to."""
