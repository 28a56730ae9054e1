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


def migrations() -> list[tuple[int, str]]:
    return read_migrations(__package__)
