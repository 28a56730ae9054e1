"""Approvals and the calls they hold, as rows: the columns that are written, and the values that are read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from taskgate.core.governance.approval import Approval, State
from taskgate.core.governance.held_call import HeldCall
from taskgate.store.sealing import Sealing

_encode: Final = msgspec.json.Encoder().encode
_decode_approval: Final = msgspec.json.Decoder(Approval).decode


def approval_columns(sealing: Sealing, held: HeldCall) -> dict[str, Any]:
    approval = held.approval
    due = {State.OPEN: approval.binding.expires_at_ms, State.APPROVED: approval.valid_until_ms}
    return {
        "id": approval.id,
        "principal": approval.binding.principal,
        "task_id": held.task_id,
        "caller": held.caller,
        "server": approval.binding.server,
        "tool": approval.binding.tool,
        "state": approval.state.value,
        "asked_ms": approval.asked_at_ms,
        "due_ms": due.get(approval.state),
        "decided_ms": approval.decided_at_ms,
        "wire_name": held.wire_name,
        "arguments": sealing.seal(held.arguments, approval.id),
        "doc": _encode(approval),
    }


def approval_from(doc: bytes) -> Approval:
    return _decode_approval(doc)


def held_from(sealing: Sealing, row: Sequence[Any]) -> HeldCall:
    doc, caller, wire_name, arguments, task_id = row
    approval = approval_from(doc)
    return HeldCall(approval, caller, wire_name, sealing.open(arguments, approval.id), task_id=task_id)
