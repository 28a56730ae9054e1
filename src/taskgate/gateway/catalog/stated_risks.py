"""What people have stated about the risk of tools. A statement is bound to the definition that the person saw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

from taskgate.core.catalog.pin import Pin, raw_definition
from taskgate.core.catalog.pin_keys import RISK_PREFIX
from taskgate.core.risk import Risk
from taskgate.store.operations.pins import StoredPin

_MEMBER: Final = "risk"


class StatedRisk(msgspec.Struct, frozen=True):
    digest: str
    risk: Risk


StatedRisks: TypeAlias = Mapping[tuple[str, str], StatedRisk]
"""By server and tool."""


def pin_of(stated: StatedRisk) -> Pin:
    """Return the form in which it is stored."""
    return Pin(stated.digest, raw_definition({_MEMBER: stated.risk.value}))


def stated_risks(stored: Iterable[StoredPin]) -> StatedRisks:
    """Return the statements among stored pins. A tool that a server names like one is no statement: no person made it."""
    found = dict[tuple[str, str], StatedRisk]()
    for each in stored:
        word = each.pin.definition.get(_MEMBER) if each.by and each.tool.startswith(RISK_PREFIX) else None
        if word in tuple(Risk):
            found[each.server, each.tool.removeprefix(RISK_PREFIX)] = StatedRisk(each.pin.digest, Risk(word))
    return found
