"""Suggested rules, from how people decided about each tool: ask less often, or ask at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

ALWAYS_APPROVED: Final = 5
"""So many times yes and never no, before it is suggested to ask less."""


@dataclass(frozen=True, slots=True)
class ToolHistory:
    """What is known of one tool over some days: how people decided about it, and how it was called without being asked about."""

    server: str
    tool: str
    approved: int = 0
    denied: int = 0
    expired: int = 0
    forwarded: int = 0
    risky: bool = False
    """Its server says that it destroys something, or the operator that it may run only once."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    ask: str
    """`less` or `more`."""
    server: str
    tool: str
    why: str
    rule: str
    """A line for `governance.rules` that would do it."""


def suggest(histories: Iterable[ToolHistory]) -> tuple[Suggestion, ...]:
    """Ask less where the answer was always yes, and more where something risky was never asked about."""
    return tuple(found for history in histories if (found := _suggestion(history)) is not None)


def _suggestion(history: ToolHistory) -> Suggestion | None:
    asked = history.approved + history.denied + history.expired
    if history.approved >= ALWAYS_APPROVED and asked == history.approved and not history.risky:
        why = f"approved {history.approved} times, never denied"
        return Suggestion("less", history.server, history.tool, why, _rule(history, "forward"))
    if history.risky and history.forwarded and not asked:
        why = f"ran {history.forwarded} times without being asked about, though it is risky"
        return Suggestion("more", history.server, history.tool, why, _rule(history, "approve"))
    return None


def _rule(history: ToolHistory, action: str) -> str:
    return f"- {{match: {_quoted(history.tool)}, server: {_quoted(history.server)}, action: {action}}}"


def _quoted(text: str) -> str:
    """As a YAML string in double quotes, which JSON strings are, with nothing in it that a glob would read."""
    escaped = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)
    return msgspec.json.encode(escaped).decode()
