"""A row of history for a template: how it ended, how long it took, and where it leads."""

from __future__ import annotations

from typing import Any, Final

from taskgate.core.history.row import CallOutcome, HistoryRow, RowKind
from taskgate.core.timestamps import iso

_STATES: Final = {CallOutcome.OK: "completed", CallOutcome.DENIED: "denied", CallOutcome.GAP: "gap"}


def history_line(row: HistoryRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "kind": row.kind.value,
        "state": _STATES.get(row.outcome, row.outcome.value),
        "tool": row.tool,
        "server": row.server,
        "caller": row.caller,
        "scope": row.scope,
        "client": row.client,
        "at": iso(row.ended_ms),
        "took_ms": row.duration_ms if row.kind is not RowKind.DENIAL and row.accepted_ms else None,
        "why": _why(row),
        "count": row.count,
        "attempts": row.attempts,
        "approved_by": row.approved_by,
        "size_in": row.size_in,
        "size_out": row.size_out,
    }


def _why(row: HistoryRow) -> str:
    """Why it did not end well: the error type, the reason and the rule. Empty for calls that did."""
    if row.outcome is CallOutcome.OK:
        return ""
    return " · ".join(part for part in (row.error_type, row.reason, row.rule) if part)
