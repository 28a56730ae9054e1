"""The SQL statements of the SQLite adapter, by name."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Final, NamedTuple

from taskgate.store.sql_files import for_sqlite, read_queries

SQL: Final = read_queries(__package__, for_sqlite)

PARAMETER: Final = re.compile(r"'[^']*'|--[^\n]*|:(\w+)")


class PositionalStatement(NamedTuple):
    """A statement with positional parameters. With named ones the driver releases the interpreter lock for each of them."""

    text: str
    in_order: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    """Returns the values in the order of the parameters."""


def _by_position(text: str) -> PositionalStatement:
    names: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        name = found[1]
        return found[0] if name is None else f"?{names.setdefault(name, len(names) + 1)}"

    text = PARAMETER.sub(numbered, text)
    match list(names):
        case []:
            return PositionalStatement(text, lambda _: ())
        case [only]:
            return PositionalStatement(text, lambda values: (values[only],))
        case _:
            return PositionalStatement(text, itemgetter(*names))


STATEMENTS: Final = {name: _by_position(text) for name, text in SQL.items()}


def run_named(connection: sqlite3.Connection, name: str, values: Mapping[str, Any]) -> sqlite3.Cursor:
    """Run a statement by name."""
    text, in_order = STATEMENTS[name]
    return connection.execute(text, in_order(values))
