"""How much a tool can change, as declared by its server or stated by the operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any


class Risk(StrEnum):
    """In order: a condition may require at least one of these."""

    READS = "reads"
    WRITES = "writes"
    UNDECLARED = "undeclared"
    DESTRUCTIVE = "destructive"


def declared_risk(annotations: Any) -> Risk:
    """Return the risk that the hints of a tool declare; `annotations` is what its definition has under this name."""
    if not isinstance(annotations, Mapping):
        return Risk.UNDECLARED
    reads_only, destroys = annotations.get("readOnlyHint"), annotations.get("destructiveHint")
    if reads_only is True:
        return Risk.READS
    if destroys is False:
        return Risk.WRITES
    if destroys is True or reads_only is False:
        return Risk.DESTRUCTIVE
    return Risk.UNDECLARED


def effective_risk(declared: Risk, *, trusted: bool, stated: Risk | None = None) -> Risk:
    """Return the risk that decisions use: what the operator stated, else what the server declares. The hints of a server
    that is not trusted can raise the risk and never lower it.
    """
    if stated is not None:
        return stated
    return declared if trusted or declared is Risk.DESTRUCTIVE else Risk.UNDECLARED


def highest(risks: Iterable[Risk]) -> Risk:
    """Return the highest of some risks."""
    return max(risks, key=tuple(Risk).index)
