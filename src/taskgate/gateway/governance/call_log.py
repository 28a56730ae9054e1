"""Plain calls that passed through, on their way into audit log and usage: noted in memory while they happen, written once a second.

A plain call must not wait for the disk, nor pay for a row of its own under load: of each second the first calls get a row each,
with the digest of their arguments; the others are counted by caller, tool and outcome, and the count gets a row.
Usage is added up by caller and tool in the same step.
"""

from __future__ import annotations

from typing import Final

from taskgate import clock
from taskgate.core import wire
from taskgate.core.audit import AuditEntry, revisions
from taskgate.core.errors import Executed
from taskgate.core.governance.decision import Forward
from taskgate.core.governance.digest import digest_of_bytes
from taskgate.core.identity import Caller
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.governance.record_calls import CallRecorder
from taskgate.gateway.governance.usage import BYTES_IN, BYTES_OUT, CALLS, ERRORS, SECONDS, UsageCounter
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
    def __init__(self, log: AuditLog, recorder: CallRecorder, usage: UsageCounter) -> None:
        self._log = log
        self._recorder = recorder
        self._usage = usage
        self._calls: list[tuple[_Kind, bytes, bool]] = []
        self._more: dict[tuple[int, int, str, Executed], _Seen] = {}
        self._others = 0

    def note(self, request: Request, tool: ToolRef, outcome: str, executed: Executed, size: int) -> None:
        """On the hot path: remember, nothing else. `size` is that of the result."""
        kind = (request.caller, tool, outcome, executed)
        params = request.message.raw_params or b""
        # Callers and tools are the same objects from call to call, so they are found without comparing them.
        used = self._usage.open.get((id(request.caller), id(tool)))
        if used is None:
            used = self._usage.begin(request.caller, tool)
        amounts = used.amounts
        amounts[CALLS] += 1
        amounts[ERRORS] += outcome != "ok"
        if request.delivery.span is not None:
            amounts[SECONDS] += clock.wall() - request.delivery.span.start
        amounts[BYTES_IN] += len(params)
        amounts[BYTES_OUT] += size
        if len(self._calls) < ROWS_A_ROUND:
            self._calls.append((kind, bytes(params), bool(request.narrowing.server_lists)))
            return
        same = (id(request.caller), id(tool), outcome, executed)
        found: _Seen | None = self._more.get(same)
        if found is not None:
            found.count += 1
        elif len(self._more) < KINDS_A_ROUND:
            self._more[same] = _Seen(kind)
        else:
            self._others += 1

    def became_task(self, request: Request, tool: ToolRef) -> None:
        """A call that is to be a task, whose end does not come here: put on record now, unless the gate has done so."""
        if self._recorder.on and type(tool.decision) is Forward and tool.decision.note is None:
            arguments = _arguments(bytes(request.message.raw_params or b""))
            self._recorder.plain(request.caller, tool, arguments, bool(request.narrowing.server_lists))

    def flush(self, policy_revision: str, *, last: bool) -> None:
        """Hand what was noted to the log. Called once a second, and at the end."""
        self._usage.flush(last=last)
        self._write(policy_revision)
        self._recorder.flush(last=last)

    async def forget_old(self) -> None:
        await self._recorder.forget_old()

    def _write(self, policy_revision: str) -> None:
        calls, self._calls = self._calls, []
        more, self._more = self._more, {}
        others, self._others = self._others, 0
        read = 0
        for kind, params, asked_servers in calls:
            read += len(params)
            if self._recorder.on:
                self._recorder.plain(kind[0], kind[1], _arguments(params), asked_servers)
            self._log.record(_entry("call", kind, policy_revision, _digest(params, strictly=read <= READ_A_ROUND)))
        for seen in more.values():
            self._log.record(_entry("calls", seen.kind, policy_revision, "", f"{seen.count} more calls of this kind"))
        self._recorder.not_recorded(others + sum(seen.count for seen in more.values()))
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


def _arguments(params: bytes) -> bytes:
    arguments = wire.members_of(params).get("arguments") if params else None
    return bytes(arguments) if arguments is not None else b"{}"


def _digest(params: bytes, *, strictly: bool) -> str:
    text = _arguments(params)
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
