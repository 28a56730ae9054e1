"""Plain calls that passed through, on their way into the audit log: noted in memory while they happen, written once a second.

A plain call must not wait for the disk, nor pay for a row of its own under load: of each second the first calls get a row each,
with the digest of their arguments; the others are counted by caller, tool and outcome, and the count gets a row.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from taskgate.core import wire
from taskgate.core.audit import Entry
from taskgate.core.errors import Executed
from taskgate.gateway.request import Request
from taskgate.gateway.tasks.desk import arguments_digest
from taskgate.gateway.views import ToolRef
from taskgate.ports.audit_log import AuditLog

ROWS_A_ROUND: Final = 200
KINDS_A_ROUND: Final = 2_000

_Kind = tuple[str, str, str, str, str, str, str, str]


class CallLog:
    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self._calls: list[tuple[_Kind, bytes]] = []
        self._more: Counter[_Kind] = Counter()

    def note(self, request: Request, tool: ToolRef, outcome: str, executed: Executed) -> None:
        """On the hot path: remember, nothing else."""
        caller = request.caller
        kind = (
            caller.principal,
            caller.scope,
            tool.server,
            tool.name,
            tool.decision.rule,
            outcome,
            executed.value,
            tool.revision,
        )
        if len(self._calls) < ROWS_A_ROUND:
            self._calls.append((kind, bytes(request.message.raw_params or b"")))
        elif kind in self._more or len(self._more) < KINDS_A_ROUND:
            self._more[kind] += 1
        else:
            self._more[("", "", "", "", "", "other", "maybe", "")] += 1

    def flush(self, policy_revision: str) -> None:
        """Hand what was noted to the log. Called once a second, and at the end."""
        calls, self._calls = self._calls, []
        more, self._more = self._more, Counter()
        for kind, params in calls:
            self._log.record(_entry("call", kind, policy_revision, _digest(params)))
        for kind, count in more.items():
            self._log.record(_entry("calls", kind, policy_revision, "", f"{count} more calls of this kind"))


def _digest(params: bytes) -> str:
    arguments = wire.members_of(params).get("arguments") if params else None
    return arguments_digest(bytes(arguments)) if arguments is not None else arguments_digest(b"{}")


def _entry(event: str, kind: _Kind, revision: str, digest: str, reason: str = "") -> Entry:
    principal, scope, server, name, rule, outcome, executed, subset = kind
    return Entry(
        0,
        event,
        principal,
        scope,
        server,
        name,
        arguments_digest=digest,
        rule=rule,
        decision="forward",
        policy_revision=f"{revision}/{subset}" if subset else revision,
        reason=reason,
        outcome=outcome,
        executed=executed,
    )
