"""Plain calls that passed through, on their way into the audit log: noted in memory while they happen, written once a second.

A plain call must not wait for the disk, nor pay for a row of its own under load: of each second the first calls get a row each,
with the digest of their arguments; the others are counted by caller, tool and outcome, and the count gets a row.
"""

from __future__ import annotations

from typing import Final

from taskgate.core import wire
from taskgate.core.audit import AuditEntry, revisions
from taskgate.core.caller import Caller
from taskgate.core.errors import Executed
from taskgate.core.governance.digest import digest_of_bytes
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.requests.caller_keys import arguments_digest
from taskgate.gateway.requests.request import Request
from taskgate.ports.store import AuditLog

ROWS_A_ROUND: Final = 200
KINDS_A_ROUND: Final = 2_000
READ_A_ROUND: Final = 128 * 1024
"""Bytes of arguments that are read for their digests in one go; of the rest the bytes themselves are digested."""

_Kind = tuple[Caller, ToolRef, str, Executed]


class _Seen:
    """Calls of one kind in this second. Holding on to the caller and the tool keeps their identity from being reused."""

    __slots__ = ("count", "kind")

    def __init__(self, kind: _Kind) -> None:
        self.kind = kind
        self.count = 1


class CallLog:
    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self._calls: list[tuple[_Kind, bytes]] = []
        self._more: dict[tuple[int, int, str, Executed], _Seen] = {}
        self._others = 0

    def note(self, request: Request, tool: ToolRef, outcome: str, executed: Executed) -> None:
        """On the hot path: remember, nothing else."""
        kind = (request.caller, tool, outcome, executed)
        if len(self._calls) < ROWS_A_ROUND:
            self._calls.append((kind, bytes(request.message.raw_params or b"")))
            return
        # Callers and tools are the same objects from call to call, so calls are counted without comparing them.
        same = (id(request.caller), id(tool), outcome, executed)
        found: _Seen | None = self._more.get(same)
        if found is not None:
            found.count += 1
        elif len(self._more) < KINDS_A_ROUND:
            self._more[same] = _Seen(kind)
        else:
            self._others += 1

    def flush(self, policy_revision: str) -> None:
        """Hand what was noted to the log. Called once a second, and at the end."""
        calls, self._calls = self._calls, []
        more, self._more = self._more, {}
        others, self._others = self._others, 0
        read = 0
        for kind, params in calls:
            read += len(params)
            self._log.record(_entry("call", kind, policy_revision, _digest(params, strictly=read <= READ_A_ROUND)))
        for seen in more.values():
            self._log.record(_entry("calls", seen.kind, policy_revision, "", f"{seen.count} more calls of this kind"))
        if others:
            self._log.record(
                AuditEntry(
                    0,
                    "calls",
                    decision="forward",
                    reason=f"{others} more calls of other kinds",
                    outcome="other",
                    executed="maybe",
                )
            )


def _digest(params: bytes, *, strictly: bool) -> str:
    arguments = wire.members_of(params).get("arguments") if params else None
    text = bytes(arguments) if arguments is not None else b"{}"
    return arguments_digest(text) if strictly else digest_of_bytes(text)


def _entry(event: str, kind: _Kind, revision: str, digest: str, reason: str = "") -> AuditEntry:
    caller, tool, outcome, executed = kind
    return AuditEntry(
        0,
        event,
        caller.principal,
        caller.scope,
        tool.server,
        tool.name,
        arguments_digest=digest,
        rule=tool.decision.rule,
        decision="forward",
        policy_revision=revisions(revision, tool.revision),
        reason=reason,
        outcome=outcome,
        executed=executed.value,
    )
