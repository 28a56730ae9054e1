"""The SQL statements and migrations of the PostgreSQL adapter, by name, with parameters in the style of the driver."""

from __future__ import annotations

import re
from typing import Final

from taskgate.store.sql_files import for_postgres, read_migrations, read_queries

_ARRAY: Final = re.compile(r"(?<!:):([a-z]\w*)(::\w+\[\])")
_VALUE: Final = re.compile(r"(?<!:):([a-z]\w*)")
_COMMENT: Final = re.compile(r"^\s*--.*\n", re.MULTILINE)


def _for_driver(text: str) -> bytes:
    """Arrays are sent in binary format: in text format every element must be quoted and escaped."""
    plain = _COMMENT.sub("", text).replace("%", "%%")
    return _VALUE.sub(r"%(\1)s", _ARRAY.sub(r"%(\1)b\2", plain)).encode()


SQL: Final = {name: _for_driver(text) for name, text in read_queries(__package__, for_postgres).items()}

PLANNED_EACH_TIME: Final = frozenset(
    {"history_matching", "history_of_caller", "history_totals", "history_latencies", "forget_history_of"}
)
"""Statements that are never prepared. The best index depends on the conditions that are given, on the length of a range, or on
whether a caller has few rows or many; the one plan that the server makes for all values may read every row."""
PREPARED: Final = dict.fromkeys(PLANNED_EACH_TIME, False)
"""The driver's `prepare` argument by statement; for the others the driver decides."""


def migrations() -> list[tuple[int, str]]:
    return read_migrations(__package__)
