"""Write plain calls to the audit log, in batches and outside the call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from taskgate import clock
from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry, revisions
from taskgate.core.digest import digest_of_bytes
from taskgate.core.errors import Executed, GatewayFault
from taskgate.core.governance.decision import Forward
from taskgate.core.history.counts import step_of
from taskgate.core.history.row import CallOutcome, HistoryRow
from taskgate.core.identity.caller import Caller
from taskgate.core.wire import Raw
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.governance.call_recorder import MAX_BYTES, CallRecorder
from taskgate.gateway.governance.history_recorder import HistoryRecorder
from taskgate.gateway.governance.usage_counter import BYTES_IN, BYTES_OUT, SECONDS, UsageCounter
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.strict_arguments import arguments_digest
from taskgate.ports.audit_log import AuditLog
from taskgate.telemetry.logs import log

ROWS_PER_ROUND: Final = 200
KINDS_PER_ROUND: Final = 2_000
PARSED_BYTES_PER_ROUND: Final = 128 * 1024
"""Bytes of arguments that are parsed for canonical digests in one round; beyond that the raw bytes are hashed."""
PARSED_BYTES_PER_PIECE: Final = 16 * 1024
"""Maximum size of arguments that are kept until the flush. Of larger ones only the digest is kept."""
ROWS_PER_PIECE: Final = 20
PIECES_PER_ROUND: Final = 10
PIECE_PAUSE_S: Final = 0.05
"""A round is written in pieces, because a task created at the same moment waits for everything written with it."""
MAX_PENDING: Final = 20_000
"""Maximum number of rows that are kept while the store cannot be written to; further calls are only counted."""
_OK: Final = CallOutcome.OK
_NO_ARGUMENTS: Final = Raw(b"{}")
_Kind = tuple[Caller, ToolRef, str, Executed]


class _Seen:
    """Calls of one kind in this second. The references to caller and tool keep their `id()` from being reused."""

    __slots__ = ("count", "kind")

    def __init__(self, kind: _Kind) -> None:
        self.kind = kind
        self.count = 1


class _Noted(msgspec.Struct, frozen=True):
    """One call. `digest` is set if its arguments are too large to be kept."""

    kind: _Kind
    params: bytes
    digest: str | None
    server_requested: bool
    row: HistoryRow | None
    """Its row of history, which gets the digest of the audit row."""


class CallLog:
    def __init__(
        self,
        log: AuditLog,
        plan: Live[Plan],
        recorder: CallRecorder,
        usage: UsageCounter,
        history: HistoryRecorder,
    ) -> None:
        self.history = history
        self._log = log
        self._plan = plan
        self._recorder = recorder
        self._usage = usage
        self._calls: list[_Noted] = []
        self._more: dict[tuple[int, int, str, Executed], _Seen] = {}
        self._others = 0
        self._unwritten = 0
        self._pending: deque[tuple[int, Callable[[], AuditEntry], HistoryRow | None]] = deque()
        """Pending rows: bytes to parse, the function that creates the audit row, and the row of history."""
        self._next_piece: asyncio.TimerHandle | None = None

    def note(
        self,
        request: Request,
        tool: ToolRef,
        ended: CallOutcome,
        executed: Executed,
        size: int = 0,
        *,
        error_type: str = "",
    ) -> None:
        """Note one plain call. On the hot path, so it only counts and appends. `size` is that of the result."""
        caller, params, delivery = request.caller, request.message.raw_params or b"", request.delivery
        # Caller and tool are the same objects in every call, so they are found by identity.
        used = self._usage.open.get((id(caller), id(tool)))
        if used is None:
            used = self._usage.begin(caller, tool)
        amounts = used.amounts
        now = clock.monotonic()
        took = now - delivery.span.began if delivery.span is not None else 0.0
        amounts[SECONDS] += took
        amounts[BYTES_IN] += len(params)
        amounts[BYTES_OUT] += size
        counted = (ended, step_of(took * 1000))
        used.ended[counted] = used.ended.get(counted, 0) + 1
        row: HistoryRow | None = None
        if self.history.keeps(ended, took, now, asked=delivery.asked):
            row = self.history.row_of(
                request,
                tool,
                ended,
                executed,
                error_type=error_type,
                took_s=took,
                size_in=len(params),
                size_out=size,
            )
        if len(self._calls) >= ROWS_PER_ROUND and self._plan.value.features.audit_every_call:
            # End the round early: each call gets its row, and memory stays bounded.
            self._end_round(self._plan.value.gates.revision)
            self._hand_over(len(self._pending), last=True)
        outcome = "ok" if ended is _OK else "error"
        if len(self._calls) < ROWS_PER_ROUND:
            kind = (caller, tool, outcome, executed)
            server_requested = bool(request.narrowing.server_lists)
            if len(params) <= PARSED_BYTES_PER_PIECE:
                self._calls.append(_Noted(kind, bytes(params), None, server_requested, row))
            else:
                arguments = request.members().get("arguments", _NO_ARGUMENTS)
                self._calls.append(_Noted(kind, b"", digest_of_bytes(bytes(arguments)), server_requested, row))
            return
        if row is not None:
            self.history.add(row)
        same = (id(caller), id(tool), outcome, executed)
        found: _Seen | None = self._more.get(same)
        if found is not None:
            found.count += 1
        elif len(self._more) < KINDS_PER_ROUND:
            self._more[same] = _Seen((caller, tool, outcome, executed))
        else:
            self._others += 1

    def became_task(self, request: Request, tool: ToolRef) -> None:
        """Record a call that becomes a task, unless the gate already did. Its end is not reported here."""
        if self._recorder.on and type(tool.decision) is Forward and tool.decision.note is None:
            arguments = request.members().get("arguments", _NO_ARGUMENTS)
            short = bytes(arguments) if memoryview(arguments).nbytes <= MAX_BYTES else None
            server_requested = bool(request.narrowing.server_lists)
            self._recorder.plain(request.caller, tool, short, server_requested, from_script=bool(request.script))

    def flush(self, policy_revision: str, *, last: bool) -> None:
        """Write the noted calls: a part now, the rest within the second. Called once a second, and at shutdown."""
        self._usage.flush(last=last)
        self._end_round(policy_revision)
        rows = len(self._pending)
        self._hand_over(rows if last else max(ROWS_PER_PIECE, rows // PIECES_PER_ROUND), last=last)
        self._recorder.flush(last=last)
        self.history.flush(last=last)

    def forget_person(self, principal: str) -> None:
        """Drop counts and rows of history that are not written yet, of a person whose data is erased."""
        self._usage.forget_person(principal)
        self.history.forget_person(principal)

    async def forget_old(self, portions: int) -> bool:
        return await self._recorder.forget_old(portions)

    def _end_round(self, revision: str) -> None:
        calls, self._calls = self._calls, []
        more, self._more = self._more, {}
        others, self._others = self._others, 0
        read = 0
        for call in calls:
            kind, params, digest = call.kind, call.params, call.digest
            read += len(params)
            if self._recorder.on:
                short = _arguments(params) if digest is None else None
                self._recorder.plain(kind[0], kind[1], short, call.server_requested)
            if len(self._pending) >= MAX_PENDING:
                self._unwritten += 1
                if call.row is not None:
                    self.history.add(call.row)
                continue
            if digest is None:
                row = partial(_call_entry, kind, revision, params, strictly=read <= PARSED_BYTES_PER_ROUND)
            else:
                row = partial(_entry, "call", kind, revision, digest)
            self._pending.append((len(params), row, call.row))
        for seen in more.values():
            if len(self._pending) >= MAX_PENDING:
                self._unwritten += seen.count
                continue
            reason = f"{seen.count} more calls of this kind"
            self._pending.append((0, partial(_entry, "calls", seen.kind, revision, "", reason), None))
        self._recorder.not_recorded(others + sum(seen.count for seen in more.values()))
        self._unwritten += others
        if self._unwritten and len(self._pending) < MAX_PENDING:
            self._pending.append((0, partial(_others_entry, self._unwritten), None))
            self._unwritten = 0

    def _hand_over(self, maximum: int, *, last: bool = False) -> None:
        if self._next_piece is not None:
            self._next_piece.cancel()
            self._next_piece = None
        rows = read = 0
        try:
            while self._pending and rows < maximum and (read < PARSED_BYTES_PER_PIECE or last):
                size, row, seen = self._pending[0]
                entry = row()
                self._log.record(entry)
                self._pending.popleft()
                rows, read = rows + 1, read + size
                if seen is not None:
                    self.history.add(replace(seen, digest=entry.arguments_digest))
        except GatewayFault as fault:
            # The queue of the store is full. The rows wait for the next round; the rest of this one does not fail with them.
            log.warning("calls are not in the audit log yet", calls=len(self._pending), why=fault.message)
            return
        if self._pending:
            self._next_piece = asyncio.get_running_loop().call_later(PIECE_PAUSE_S, self._hand_over, maximum)


def _arguments(params: bytes) -> bytes:
    arguments = wire.members_of(params).get("arguments") if params else None
    return bytes(arguments) if arguments is not None else b"{}"


def _call_entry(kind: _Kind, revision: str, params: bytes, *, strictly: bool) -> AuditEntry:
    text = _arguments(params)
    return _entry("call", kind, revision, arguments_digest(text) if strictly else digest_of_bytes(text))


def _others_entry(count: int) -> AuditEntry:
    reason = f"{count} more calls of other kinds"
    return AuditEntry(0, "calls", decision="forward", reason=reason, outcome="other", executed="maybe")


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
        executed=str(executed),
    )
