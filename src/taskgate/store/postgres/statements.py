"""The SQL of this adapter, by name, with its values written as the driver wants them."""

from __future__ import annotations

import re
from typing import Final

from taskgate.store.named_queries import read_migrations, read_queries

_ARRAY: Final = re.compile(r"(?<!:):([a-z]\w*)(::\w+\[\])")
_VALUE: Final = re.compile(r"(?<!:):([a-z]\w*)")
_COMMENT: Final = re.compile(r"^\s*--.*\n", re.MULTILINE)


def _in_drivers_style(text: str) -> bytes:
    """Arrays travel in binary form: their text form has to be quoted and escaped, piece by piece."""
    plain = _COMMENT.sub("", text).replace("%", "%%")
    return _VALUE.sub(r"%(\1)s", _ARRAY.sub(r"%(\1)b\2", plain)).encode()


SQL: Final = {name: _in_drivers_style(text) for name, text in read_queries(__package__).items()}


def migrations() -> list[tuple[int, str]]:
    return read_migrations(__package__)
