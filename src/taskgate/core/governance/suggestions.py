"""Suggested rules, from how people decided about each tool: require fewer approvals, or require one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

ALWAYS_APPROVED: Final = 5
"""Number of approvals without a denial after which fewer approvals are suggested."""


class ToolHistory(msgspec.Struct, frozen=True):
    """The history of one tool over some days: decisions of approvers, and calls that needed no approval."""

    server: str
    tool: str
    approved: int = 0
    denied: int = 0
    expired: int = 0
    forwarded: int = 0
    risky: bool = False
    """Its server declares it destructive, or the operator declares that it may run only once."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """A suggested rule."""

    ask: Annotated[str, Meta(description="`less` or `more` often")]
    server: Annotated[str, Meta(description="name of the server")]
    tool: Annotated[str, Meta(description="name of the tool")]
    why: Annotated[str, Meta(description="reason")]
    rule: Annotated[str, Meta(description="suggested rule, as YAML")]


def suggest(histories: Iterable[ToolHistory]) -> tuple[Suggestion, ...]:
    """Suggest fewer approvals where all were granted, and approvals for risky tools that need none."""
    return tuple(found for history in histories if (found := _suggestion(history)) is not None)


def _suggestion(history: ToolHistory) -> Suggestion | None:
    decided = history.approved + history.denied + history.expired
    if history.approved >= ALWAYS_APPROVED and decided == history.approved and not history.risky:
        why = f"approved {history.approved} times, never denied"
        return Suggestion(ask="less", server=history.server, tool=history.tool, why=why, rule=_rule(history, "forward"))
    if history.risky and history.forwarded and not decided:
        why = f"ran {history.forwarded} times without approval, although it is risky"
        return Suggestion(ask="more", server=history.server, tool=history.tool, why=why, rule=_rule(history, "approve"))
    return None


def _rule(history: ToolHistory, action: str) -> str:
    return f"- {{match: {_quoted(history.tool)}, server: {_quoted(history.server)}, action: {action}}}"


def _quoted(text: str) -> str:
    """Return a YAML string in double quotes (JSON strings are valid YAML), with glob characters escaped."""
    escaped = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)
    return msgspec.json.encode(escaped).decode()
