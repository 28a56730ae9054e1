"""Differences between two JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Struct

from taskgate.core.redaction.difference import ChangeKind, Difference
from taskgate.replies.fields import about


class ValueChange(Struct, frozen=True, kw_only=True):
    """One difference."""

    path: Annotated[str, about("place in the value")]
    kind: Annotated[ChangeKind, about("kind of difference")]
    before: Annotated[Any, about("earlier value")]
    after: Annotated[Any, about("current value")]
    hidden: Annotated[bool, about("whether the values are redacted")]


class ValueChanges(Struct, frozen=True, kw_only=True):
    """All differences, or the first of them."""

    left_out: Annotated[int, about("number of further differences that are not listed")]
    list: Sequence[ValueChange]


def changes_in(found: Difference) -> ValueChanges:
    listed = [
        ValueChange(path=one.path, kind=one.kind, before=one.before, after=one.after, hidden=one.hidden)
        for one in found.changes
    ]
    return ValueChanges(left_out=found.left_out, list=listed)
