"""Rows whose content cannot be read: each is named in the log and left out, so that it does not stop what reads the others.

`taskgate doctor` lists them. A single read of such a row still fails: its caller asked for this one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec

from taskgate.core.errors import GatewayFault
from taskgate.core.wire import MalformedJson
from taskgate.telemetry.logs import log

T = TypeVar("T")
R = TypeVar("R")

_WRONG: Final = (ValueError, TypeError, KeyError, ArithmeticError, msgspec.MsgspecError, MalformedJson)
UNREADABLE: Final = (*_WRONG, GatewayFault)
"""A value that was changed in an encrypted store is a GatewayFault."""
_MAX_NAMED: Final = 1_000
_ID: Final = re.compile(rb'"(?:id|number)":"?([\w:.-]{1,64})')
_named: set[tuple[str, str]] = set()


def readable(
    table: str,
    rows: Iterable[R],
    read: Callable[[R], T],
    name: Callable[[R], str] | None = None,
) -> list[T]:
    """Return what can be read. `name` returns the key of a row; by default it is searched in the row's document."""
    found: list[T] = []
    for row in rows:
        try:
            found.append(read(row))
        except UNREADABLE as error:
            name_damaged(table, (name or _name_in)(row), error)
    return found


@contextmanager
def left_out(table: str, key: str) -> Iterator[None]:
    """Around work on one row in a loop over several: if the row is damaged, the loop continues with the next one."""
    try:
        yield
    except _WRONG as error:
        name_damaged(table, key, error)


def name_damaged(table: str, key: str, error: Exception) -> None:
    """Log a damaged row, once for each start."""
    if (table, key) in _named or len(_named) >= _MAX_NAMED:
        return
    _named.add((table, key))
    log.error(
        "a damaged row of the store is left out; `taskgate doctor` lists all of them",
        table=table,
        row=key or "unknown",
        why=str(error) or type(error).__name__,
    )


def _name_in(row: Any) -> str:
    """Search the id in the documents of a row; what is left of them may still show it."""
    for value in row:
        if isinstance(value, (bytes, memoryview)) and (found := _ID.search(bytes(value))) is not None:
            return found[1].decode()
    return ""


def decoded(table: str, key: str, body: bytes, wanted: type[T]) -> T | None:
    """Return the value of a JSON document; None if it is damaged."""
    try:
        return msgspec.json.decode(body, type=wanted)
    except UNREADABLE as error:
        name_damaged(table, key, error)
        return None
