"""An approval card as JSON for programs. Documented in docs/approval-channels.md; keys are added, never removed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from taskgate.core.governance.card import Card
from taskgate.core.governance.script_plan import plan_summary
from taskgate.core.redaction.difference import Difference


def card_json(card: Card) -> dict[str, Any]:
    """Everything on the card. `arguments` is text: exactly what an approver is to read, hidden fields marked."""
    return {
        "id": card.approval_id,
        "state": card.state.value,
        "server": card.server,
        "tool": card.tool,
        "requester": card.requester,
        "scope": card.scope,
        "workflow": card.workflow,
        "rule": card.rule,
        "arguments": card.arguments,
        "script": card.script,
        "plan": None if card.plan is None else card.plan.as_json(),
        "plan_summary": None if card.plan is None else plan_summary(card.plan),
        "from_script": None if card.from_script is None else card.from_script.as_json(),
        "arguments_digest": card.arguments_digest,
        "hidden": list(card.hidden),
        "deceptive": list(card.deceptive),
        "not_validated": card.unvalidated,
        "changes": None if card.changes is None else _changes(card.changes),
        "votes": [
            {
                "approver": vote.approver,
                "verdict": vote.verdict.value,
                "at": moment(vote.at_ms),
                "reason": vote.reason,
                "channel": vote.channel,
            }
            for vote in card.votes
        ],
        "approvals_needed": card.approvals_needed,
        "approvals_given": card.approvals_given,
        "asked_at": moment(card.asked_at_ms),
        "expires_at": moment(card.expires_at_ms),
        "reason": card.reason,
        "url": card.url,
    }


def moment(at_ms: int) -> str:
    """A time in UTC, as RFC 3339 writes it."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _changes(difference: Difference) -> dict[str, Any]:
    return {
        "left_out": difference.left_out,
        "list": [
            {
                "path": change.path,
                "kind": change.kind.value,
                "before": change.before,
                "after": change.after,
                "hidden": change.hidden,
            }
            for change in difference.changes
        ],
    }
