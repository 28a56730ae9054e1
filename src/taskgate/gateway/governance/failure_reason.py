"""Why a plain call failed, as its row of history states it: the beginning of the error's text, redacted."""

from __future__ import annotations

import re
from typing import Final

from taskgate.core.history.row import LONGEST_REASON, cleaned
from taskgate.core.redaction.fields import HIDDEN
from taskgate.core.redaction.secret_values import SHORTEST_IN_TEXT, SecretValues
from taskgate.core.strict_json import AmbiguousJson, parse_strict
from taskgate.gateway.plan import Plan

_READ: Final = 20 * LONGEST_REASON
"""Redaction may shorten the text, so more than what is kept is read."""


def failure_reason(plan: Plan, text: str, arguments: bytes | None) -> str:
    """Return the reason; empty if none may be kept. Servers quote arguments in their errors, so the values that an approval card
    would hide are removed. `arguments` is None if they are too large to be read: then it is not known what to remove."""
    if not text or plan.history.reasons == "off":
        return ""
    redactions = [redaction for redaction in plan.governing.redactions.values() if redaction.hides]
    if not redactions:
        return cleaned(text[:_READ], LONGEST_REASON)
    try:
        value = None if arguments is None else parse_strict(arguments)
    except AmbiguousJson:
        return ""
    if value is None:
        return ""
    hidden = set[str]().union(*(redaction.hidden_values(value) for redaction in redactions))
    return cleaned(_without(text[:_READ], hidden), LONGEST_REASON)


def _without(text: str, hidden: set[str]) -> str:
    """Remove these values; short ones only where they are no part of a longer word."""
    text = SecretValues(hidden).text(text)
    if short := sorted(re.escape(value) for value in hidden if value and len(value) < SHORTEST_IN_TEXT):
        text = re.sub(rf"(?<!\w)(?:{'|'.join(short)})(?!\w)", HIDDEN, text)
    return text
