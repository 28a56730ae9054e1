"""Records from rows of a statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

Record = TypeVar("Record", bound=msgspec.Struct)


def record_from(kind: type[Record], row: Sequence[Any]) -> Record:
    """The statement returns the first members of the record, in their order. Members without a column keep their defaults: the
    schema of an older version has fewer columns."""
    return kind(**dict(zip(kind.__struct_fields__[: len(row)], row, strict=True)))
