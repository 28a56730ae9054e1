"""Plain calls on their way into the audit log, and who uses what, counted while it happens."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from taskgate import clock
from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry, revisions
from taskgate.core.digest import digest_of_bytes
from taskgate.core.errors import Executed
from taskgate.core.governance.decision import Forward
from taskgate.core.identity.caller import Caller
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Outcome
from taskgate.core.usage import OTHERS, UsageRow, day_of
from taskgate.core.wire import Raw
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.events import EventHub, TaskChanged
from taskgate.gateway.governance.record_calls import MOST_BYTES, CallRecorder
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.strict_arguments import arguments_digest
from taskgate.ports.store import AuditLog, Store
from taskgate.telemetry.metrics import Metrics

# Who uses what, counted while it happens and handed to the store every ten seconds, by deferred writes.
#
# A plain call adds to one row that it finds by identity (`call_log`); tasks are counted when they end, models when they
# were paid. The table of a round is bounded: what does not fit stands under `(others)`.

FLUSH_EVERY: Final = 10
MOST_OPEN: Final = 5_000


CALLS, ERRORS, SECONDS, BYTES_IN, BYTES_OUT, COST = range(6)


class Used(NamedTuple):
    """What one caller does with one tool until the next flush. Holding on to both keeps their identity from being reused."""

    principal: str
    server: str
    name: str
    amounts: list[float]
    """In the order of `CALLS` to `COST`."""
    caller: Caller | None = None
    tool: ToolRef | None = None


class UsageCounter:
    def __init__(self, store: Store, metrics: Metrics, events: EventHub) -> None:
        self._store = store
        self._metrics = metrics
        self.open: dict[tuple[int, int], Used] = {}
        """Plain calls, by the identity of caller and tool."""
        self._named: dict[tuple[str, str, str], Used] = {}
        self._rounds = 0
        events.subscribe(TaskChanged, self._task_changed)

    def begin(self, caller: Caller, tool: ToolRef) -> Used:
        """The first plain call of this caller with this tool since the last flush."""
        if len(self.open) + len(self._named) >= MOST_OPEN:
            return self._row(OTHERS, OTHERS, OTHERS)
        used = self.open[id(caller), id(tool)] = Used(caller.principal, tool.server, tool.name, [0.0] * 6, caller, tool)
        return used

    def spent(self, principal: str, server: str, model: str, cost: float) -> None:
        """A model answered for this principal and was paid."""
        amounts = self._row(principal, server, f"model {model}").amounts
        amounts[CALLS] += 1
        amounts[COST] += cost

    def _row(self, principal: str, server: str, name: str) -> Used:
        key = (principal, server, name)
        found = self._named.get(key)
        if found is None:
            if len(self.open) + len(self._named) >= MOST_OPEN:
                key = (OTHERS, OTHERS, OTHERS)
            found = self._named.get(key) or Used(*key, [0.0] * 6)
            self._named[key] = found
        return found

    def _task_changed(self, event: TaskChanged) -> None:
        """One of our own tasks that was sent has just ended."""
        task = event.task
        attempt = task.last_attempt
        if attempt is None or task.finished_ms is None or task.finished_ms != task.updated_ms or not task.times_sent:
            return
        if task.state is TaskState.EXPIRED or task.owner != self._store.ownership.owner:
            return
        amounts = self._row(task.principal, task.server, task.tool).amounts
        amounts[CALLS] += 1
        amounts[ERRORS] += task.state is not TaskState.COMPLETED or (task.outcome is not None and task.outcome.is_error)
        # By the store's clock, which may have been set since: no run takes less than nothing or more than its budget.
        took_ms = min(max(0, task.finished_ms - attempt.sent_at_ms), task.execution_budget_ms)
        amounts[SECONDS] += took_ms / 1000
        amounts[BYTES_IN] += len(task.arguments) + len(task.params_rest)
        amounts[BYTES_OUT] += _size(task.outcome)

    def flush(self, *, last: bool = False) -> None:
        """Called once a second, and at the end."""
        self._rounds += 1
        if not last and self._rounds < FLUSH_EVERY:
            return
        self._rounds = 0
        found = [*self.open.values(), *self._named.values()]
        self.open.clear()
        self._named.clear()
        if found:
            self._store.add_usage(self._added_up(found))

    def _added_up(self, found: list[Used]) -> list[UsageRow]:
        day, rows = day_of(self._store.now_ms()), dict[tuple[str, str, str], UsageRow]()
        for used in found:
            self._count(used)
            calls, errors, seconds, bytes_in, bytes_out, cost = used.amounts
            numbers = (int(calls), int(errors), seconds, int(bytes_in), int(bytes_out), cost)
            row = UsageRow(day, used.principal, used.server, used.name, *numbers)
            key = (row.principal, row.server, row.tool)
            rows[key] = rows[key].plus(row) if key in rows else row
        return list(rows.values())

    def _count(self, used: Used) -> None:
        amounts, metrics = used.amounts, self._metrics
        metrics.usage_calls.add(used.server, by=amounts[CALLS])
        metrics.usage_errors.add(used.server, by=amounts[ERRORS])
        metrics.usage_seconds.add(used.server, by=amounts[SECONDS])
        metrics.usage_bytes.add(used.server, "in", by=amounts[BYTES_IN])
        metrics.usage_bytes.add(used.server, "out", by=amounts[BYTES_OUT])
        metrics.usage_cost.add(used.server, by=amounts[COST])


def _size(outcome: Outcome | None) -> int:
    return outcome.size or len(outcome.body or b"") if outcome is not None else 0


ROWS_A_ROUND: Final = 200
KINDS_A_ROUND: Final = 2_000
READ_A_ROUND: Final = 128 * 1024
"""Bytes of arguments that are read for their digests in one round; of the rest the bytes themselves are digested."""
READ_A_PIECE: Final = 16 * 1024
"""Bytes of arguments that are read in one go. Those of a call with more are not kept until then: only their digest is."""
ROWS_A_PIECE: Final = 20
PIECES_A_ROUND: Final = 10
PIECE_PAUSE_S: Final = 0.05
"""A round goes to the log in pieces: whoever makes a task in the same moment waits for all that is written with it."""

_NO_ARGUMENTS: Final = Raw(b"{}")
_Kind = tuple[Caller, ToolRef, str, Executed]


class _Seen:
    """Calls of one kind in this second. Holding on to the caller and the tool keeps their identity from being reused."""

    __slots__ = ("count", "kind")

    def __init__(self, kind: _Kind) -> None:
        self.kind = kind
        self.count = 1


class _Noted(NamedTuple):
    """One call. `digest` is that of its arguments where these are too large to be kept."""

    kind: _Kind
    params: bytes
    digest: str | None
    asked_servers: bool


class CallLog:
    def __init__(self, log: AuditLog, plan: Live[Plan], recorder: CallRecorder, usage: UsageCounter) -> None:
        self._log = log
        self._plan = plan
        self._recorder = recorder
        self._usage = usage
        self._calls: list[_Noted] = []
        self._more: dict[tuple[int, int, str, Executed], _Seen] = {}
        self._others = 0
        self._pending: deque[tuple[int, Callable[[], AuditEntry]]] = deque()
        """How many bytes a row reads, and what makes it."""
        self._next_piece: asyncio.TimerHandle | None = None

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
            amounts[SECONDS] += clock.monotonic() - request.delivery.span.began
        amounts[BYTES_IN] += len(params)
        amounts[BYTES_OUT] += size
        if len(self._calls) >= ROWS_A_ROUND and self._plan.value.features.audit_every_call:
            # The round ends early: every call gets its row, and memory holds no more calls than with sums.
            self._end_round(self._plan.value.gates.revision)
            self._hand_over(len(self._pending), last=True)
        if len(self._calls) < ROWS_A_ROUND:
            asked_servers = bool(request.narrowing.server_lists)
            if len(params) <= READ_A_PIECE:
                self._calls.append(_Noted(kind, bytes(params), None, asked_servers))
            else:
                arguments = request.members().get("arguments", _NO_ARGUMENTS)
                self._calls.append(_Noted(kind, b"", digest_of_bytes(bytes(arguments)), asked_servers))
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
            arguments = request.members().get("arguments", _NO_ARGUMENTS)
            short = bytes(arguments) if memoryview(arguments).nbytes <= MOST_BYTES else None
            self._recorder.plain(request.caller, tool, short, bool(request.narrowing.server_lists))

    def flush(self, policy_revision: str, *, last: bool) -> None:
        """Hand what was noted to the log, a part now and the rest within the second. Called once a second, and at the end."""
        self._usage.flush(last=last)
        self._end_round(policy_revision)
        rows = len(self._pending)
        self._hand_over(rows if last else max(ROWS_A_PIECE, rows // PIECES_A_ROUND), last=last)
        self._recorder.flush(last=last)

    async def forget_old(self, portions: int) -> bool:
        return await self._recorder.forget_old(portions)

    def _end_round(self, revision: str) -> None:
        calls, self._calls = self._calls, []
        more, self._more = self._more, {}
        others, self._others = self._others, 0
        read = 0
        for kind, params, digest, asked_servers in calls:
            read += len(params)
            if self._recorder.on:
                short = _arguments(params) if digest is None else None
                self._recorder.plain(kind[0], kind[1], short, asked_servers)
            if digest is None:
                row = partial(_call_entry, kind, revision, params, strictly=read <= READ_A_ROUND)
            else:
                row = partial(_entry, "call", kind, revision, digest)
            self._pending.append((len(params), row))
        for seen in more.values():
            reason = f"{seen.count} more calls of this kind"
            self._pending.append((0, partial(_entry, "calls", seen.kind, revision, "", reason)))
        self._recorder.not_recorded(others + sum(seen.count for seen in more.values()))
        if others:
            self._pending.append((0, partial(_others_entry, others)))

    def _hand_over(self, most: int, *, last: bool = False) -> None:
        if self._next_piece is not None:
            self._next_piece.cancel()
            self._next_piece = None
        rows = read = 0
        while self._pending and rows < most and (read < READ_A_PIECE or last):
            size, row = self._pending.popleft()
            rows, read = rows + 1, read + size
            self._log.record(row())
        if self._pending:
            self._next_piece = asyncio.get_running_loop().call_later(PIECE_PAUSE_S, self._hand_over, most)


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
        executed=executed.value,
    )
