"""The journal of calls: write what follows from the calls and refusals of a second in one transaction.

Rows of history, audit entries, recorded calls and sums of one round are committed together, so they agree after a crash, which
loses at most what ended since the last rounds. Tasks are not noted here: the transaction that ends a task writes the same for it
(`store.operations.journal`). If a round cannot be written, no call fails; it is kept and tried again. While too many rows are kept,
the present round goes on instead of ending: calls beyond its bounds are counted, without rows of their own, and a row of history of
kind `gap` states how many.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from taskgate import clock
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.digest import digest_of_bytes
from taskgate.core.errors import Executed, GatewayFault
from taskgate.core.governance.decision import Decision, Forward, action_of
from taskgate.core.history import keeping
from taskgate.core.history.classify import trace_of
from taskgate.core.history.counts import NO_LATENCY
from taskgate.core.history.row import LONGEST_REASON, CallOutcome, HistoryRow, RowKind, as_key, cleaned
from taskgate.core.history.sums import CallSums, Tally, sums_of_task
from taskgate.core.identity.caller import ANONYMOUS
from taskgate.core.settings.governance import Action
from taskgate.core.wire import Raw
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.events import EventHub, TaskChanged
from taskgate.gateway.governance.gated_call import GatedCall
from taskgate.gateway.governance.round_of_calls import (
    PARSED_BYTES_PER_PIECE,
    KeptCall,
    Round,
    SampledRequest,
    Written,
    sampled_plain_call,
)
from taskgate.gateway.governance.sampled_calls import MAX_BYTES, RecordedShare, SampledCall, recorded_calls
from taskgate.gateway.plan import Live, Plan
from taskgate.gateway.requests.request import Request
from taskgate.ports.store import Store
from taskgate.store.history_state import Loss
from taskgate.store.operation import Flush
from taskgate.store.operations.journal import RecordRound
from taskgate.store.operations.sums import AddUpSums, SumsAreWaiting
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

ROWS_PER_ROUND: Final = 200
"""Plain calls that get an audit entry each, and calls that are recorded for rehearsals."""
HISTORY_ROWS_PER_ROUND: Final = 500
MAX_KEPT_ROWS: Final = 20_000
"""Maximum number of rows of ended rounds that are kept while the store cannot be written to."""
TRIES: Final = 3
"""How often a round is tried that the database refuses although it accepts others."""
MAX_HANDED: Final = 50
"""Rounds that the store has at the same time. With `audit.calls: every` a second may have many."""
PIECE_PAUSE_S: Final = 0.05
ADD_UP_EVERY: Final = 10
"""Rounds after which stored sums are added up."""
ADD_UP_AT_END_S: Final = 10.0
_OK: Final = CallOutcome.OK
_NO_ARGUMENTS: Final = Raw(b"{}")


class CallEnded(msgspec.Struct, frozen=True, kw_only=True):
    """How a plain call ended. Everything that is recorded of it is made of this value."""

    request: Request
    tool: ToolRef
    outcome: CallOutcome
    executed: Executed
    size: int = 0
    """That of the result."""
    error_type: str = ""
    why: str = ""
    """The text of the error, not redacted."""


class Journal:
    def __init__(self, store: Store, metrics: Metrics, events: EventHub, plan: Live[Plan]) -> None:
        self._store = store
        self._metrics = metrics
        self._plan = plan
        self._round = Round()
        self._ended: deque[Round] = deque()
        """Rounds that are being prepared."""
        self._kept: dict[int, RecordRound] = {}
        """Rounds that are not durable yet, by number, in order."""
        self._number = 0
        self._handed: set[int] = set()
        """Those that the store has."""
        self._refused = 0
        self._is_full = False
        self._history_sample = keeping.Sample()
        self._equal_rows = keeping.EqualRows()
        self._recorded_share = RecordedShare()
        self._lost: Loss | None = None
        self._rounds = 0
        self._preparing: asyncio.Task[None] | None = None
        self._adding_up: asyncio.Task[None] | None = None
        events.subscribe(TaskChanged, self._task_changed)
        self._adjust()

    # What is noted

    def note(self, ended: CallEnded) -> None:
        """Note one plain call. On the hot path, so it only counts and appends."""
        plan, request, tool, outcome = self._plan.value, ended.request, ended.tool, ended.outcome
        caller, params, delivery = request.caller, request.message.raw_params or b"", request.delivery
        if len(self._round.calls) >= ROWS_PER_ROUND and plan.features.audit_every_call:
            # End the round early: each call gets its entry, and memory stays bounded.
            self._end_round_early()
        current = self._round
        # Caller and tool are the same objects in every call, so they are found by identity.
        tally = current.plain.get((id(caller), id(tool))) or current.begin_tally(caller, tool)
        now = clock.monotonic()
        took = now - delivery.span.began if delivery.span is not None else 0.0
        tally.count_sent(outcome, took, len(params), ended.size)
        row: HistoryRow | None = None
        sample = plan.history.sample
        if plan.history.keep > 0 and self._history_sample.keeps(
            outcome, took, now, asked=delivery.asked, per_second=sample
        ):
            row = self._row_of(ended, took, len(params))
        audited = "ok" if outcome is _OK else "error"
        if len(current.calls) >= ROWS_PER_ROUND:
            current.sum_call(caller, tool, audited, ended.executed)
            self._not_recorded()
            if row is not None:
                self._add_row(row)
            return
        is_short = len(params) <= PARSED_BYTES_PER_PIECE
        digest = None if is_short else digest_of_bytes(bytes(request.members().get("arguments", _NO_ARGUMENTS)))
        current.calls.append(
            KeptCall(
                caller=caller,
                tool=tool,
                outcome=audited,
                executed=ended.executed,
                params=bytes(params) if is_short else b"",
                digest=digest,
                sampled=SampledRequest.of(request) if plan.governing.record is not None and self._samples() else None,
                row=row,
                why=ended.why,
            )
        )

    def became_task(self, request: Request, tool: ToolRef) -> None:
        """Record a call that becomes a task, unless the gate already did. Its end is not noted here."""
        if self._plan.value.governing.record is None or type(tool.decision) is not Forward or tool.decision.note:
            return
        if self._samples():
            arguments = request.members().get("arguments", _NO_ARGUMENTS)
            short = bytes(arguments) if memoryview(arguments).nbytes <= MAX_BYTES else None
            self._round.sampled.append(sampled_plain_call(SampledRequest.of(request), tool, short))

    def governed(self, call: GatedCall, decision: Decision, *, server_requested: bool) -> None:
        """Record a call decided by a rule, a policy or a grant, or refused because of its arguments."""
        if self._plan.value.governing.record is None or not self._samples():
            return
        by_grant = decision.rule.startswith("grant ")
        too_long = len(call.arguments) > MAX_BYTES
        self._round.sampled.append(
            SampledCall(
                call=call.without_arguments() if too_long else call,
                before=Action.APPROVE if by_grant else action_of(decision),
                rule=decision.rule,
                server_requested=server_requested,
                listed=call.definition_digest != "",
                too_long=too_long,
            )
        )

    def denied(self, entry: AuditEntry, request: Request | None) -> None:
        """Note a refused request. `request` is None if the refusal came before one was read."""
        # The gate knows server and tool; in other refusals they may be invented.
        known = entry.event == "call_denied"
        server, tool = (entry.server, entry.name) if known else ("", "")
        self._refused_call(entry, request, RowKind.DENIAL, CallOutcome.DENIED)
        self._round.tally(entry.principal, server, tool).count(CallOutcome.DENIED, NO_LATENCY)

    def not_sent(self, entry: AuditEntry, request: Request) -> None:
        """Note a call of a server that cannot be reached."""
        self._refused_call(entry, request, RowKind.CALL, CallOutcome.FAILED)
        # Its tools are not known, so the name may be invented.
        self._round.tally(entry.principal, entry.server, "").count(CallOutcome.FAILED, NO_LATENCY)

    def authentication_failed(self, address: str, reason: str) -> None:
        """Note an invalid credential. These entries are counted per address, because anyone can cause them."""
        self._round.fail_authentication(address, reason)

    def spent(self, principal: str, server: str, model: str, cost: float) -> None:
        """Count the cost of a model call for this principal."""
        name = f"model {model}"
        self._round.tally(principal, server, name).add(CallSums(principal, server, name, calls=1, cost=cost))

    def _refused_call(self, entry: AuditEntry, request: Request | None, kind: RowKind, outcome: CallOutcome) -> None:
        if len(self._round.entries) >= ROWS_PER_ROUND:
            self._end_round_early()
        if entry.principal == ANONYMOUS or len(self._round.entries) >= ROWS_PER_ROUND:
            self._round.sum_refusal(entry)
        else:
            self._round.entries.append(entry)
        if self._plan.value.history.keep > 0:
            first = self._equal_rows.add(_row_of_refusal(entry, request, kind, outcome, self._store.now_ms()))
            if first is not None:
                self._add_row(first)

    def _add_row(self, row: HistoryRow) -> None:
        rows = self._round.rows
        if len(rows) < HISTORY_ROWS_PER_ROUND:
            rows.append(row)
        elif self._is_full:
            self._lose(row.ended_ms, row.count)
        elif (first := self._equal_rows.add(row)) is not None:
            rows.append(first)

    def _samples(self) -> bool:
        record = self._plan.value.governing.record
        has_room = len(self._round.sampled) < ROWS_PER_ROUND
        taken = record is not None and self._recorded_share.takes(record.sample, has_room=has_room)
        if not taken:
            self._not_recorded()
        return taken

    def _not_recorded(self) -> None:
        if self._plan.value.governing.record is not None:
            self._round.leave_out()

    def _row_of(self, ended: CallEnded, took_s: float, size_in: int) -> HistoryRow:
        """The row of a plain call that has just ended, without the digest of its arguments and its reason."""
        request, tool = ended.request, ended.tool
        now = self._store.now_ms()
        accepted = now - int(took_s * 1000)
        return HistoryRow(
            kind=RowKind.CALL,
            outcome=ended.outcome,
            caller=as_key(request.caller.principal),
            scope=as_key(request.caller.scope),
            server=tool.server,
            tool=cleaned(tool.name),
            client=cleaned(request.client_name),
            generation=request.generation.value,
            trace=trace_of(request.params),
            accepted_ms=accepted,
            sent_ms=accepted if request.delivery.sent else 0,
            ended_ms=now,
            error_type=cleaned(ended.error_type),
            rule=cleaned(tool.decision.rule),
            executed=str(ended.executed),
            attempts=1 if request.delivery.sent else 0,
            asked=request.delivery.asked,
            size_in=size_in,
            size_out=ended.size,
        )

    # Rounds

    def flush(self, *, last: bool = False) -> None:
        """End the round. Called once a second, and at shutdown."""
        self._adjust()
        self._end_round(last=last)
        self._rounds += 1
        if last:
            self._prepare_at_once()
        else:
            self._prepare()
            if self._rounds % ADD_UP_EVERY == 0 and (self._adding_up is None or self._adding_up.done()):
                self._adding_up = asyncio.get_running_loop().create_task(self.add_up())
        self._hand_over(len(self._kept) if last else MAX_HANDED)

    def forget_person(self, principal: str) -> None:
        """Drop what is not written yet of a person whose data is erased."""
        key = as_key(principal)
        self._equal_rows.forget(key)
        for noted in (self._round, *self._ended):
            noted.forget(principal, key)
        for number in self._kept.keys() - self._handed:
            self._kept[number] = self._kept[number].without(principal, key)
        if self._preparing is not None:
            self._preparing.cancel()
            self._preparing = None
            self._prepare()

    async def add_up(self) -> None:
        """Add the stored sums of all gateways to usage and the counts of history."""
        try:
            if await self._store.ask(SumsAreWaiting()):
                while await self._store.do(AddUpSums()):
                    pass
        except GatewayFault as fault:
            log.warning("usage and counts of calls are not added up yet", why=fault.message)

    async def close(self) -> None:
        """Write what is noted, and add up. What cannot be added up now is at the next start."""
        self.flush(last=True)
        if self._adding_up is not None:
            self._adding_up.cancel()
        with suppress(GatewayFault, TimeoutError):
            async with asyncio.timeout(ADD_UP_AT_END_S):
                written = self._store.do(Flush())
                await written
                await self.add_up()

    def _adjust(self) -> None:
        """Apply the settings of the plan in force."""
        self._store.state.history.switch(on=self._plan.value.history.keep > 0)

    def _end_round_early(self) -> None:
        if self._end_round():
            self._prepare()

    def _end_round(self, *, last: bool = False) -> bool:
        """End the round, unless too many rows wait for the store. Return whether it ended with something to write."""
        kept = sum(record.size for record in self._kept.values()) + sum(noted.size for noted in self._ended)
        is_full = kept >= MAX_KEPT_ROWS and not last
        if is_full and not self._is_full:
            log.warning("records of calls wait for the store; until it accepts them, further calls are only counted")
        self._is_full = is_full
        if is_full:
            return False
        now = self._store.now_ms()
        summed = self._equal_rows.take(now, self._store.state.history.next_number)
        self._round.rows.extend(summed.new)
        self._round.grown.extend(summed.grown)
        lost = _joined(self._lost, self._store.state.history.take_loss())
        self._lost = None
        if lost is not None:
            self._round.rows.append(_gap(lost))
        if self._round.is_empty:
            return False
        ended, self._round = self._round, Round()
        ended.end(self._plan.value.gates.revision)
        for tally in ended.named.values():
            self._measure(tally)
        for (address, reason), count in ended.failed.items():
            log.info("authentication failed", address=address or "several", why=reason, count=count)
        self._ended.append(ended)
        return True

    def _prepare(self) -> None:
        if self._ended and self._preparing is None:
            self._preparing = asyncio.get_running_loop().create_task(self._prepare_in_steps())

    async def _prepare_in_steps(self) -> None:
        while self._ended:
            ended = self._ended[0]
            try:
                record = await self._prepared(ended)
            except Exception as fault:  # of one round: the next ones must be written
                log.error("records of calls were lost", exc_info=fault)
                self._lose(self._store.now_ms(), len(ended.calls) + len(ended.rows))
                self._ended.popleft()
                continue
            self._ended.popleft()
            self._keep(record)
            self._hand_over(MAX_HANDED)
        self._preparing = None

    async def _prepared(self, ended: Round) -> RecordRound:
        plan = self._plan.value
        made: Written | None = None
        for made in ended.written(plan):
            if made is None:
                await clock.sleep(PIECE_PAUSE_S if len(self._ended) == 1 else 0)
        assert made is not None
        if not made.sampled:
            return made.record
        return replace(made.record, recorded=await asyncio.to_thread(recorded_calls, plan, made.sampled))

    def _prepare_at_once(self) -> None:
        if self._preparing is not None:
            self._preparing.cancel()
            self._preparing = None
        plan = self._plan.value
        while self._ended:
            *_, made = self._ended.popleft().written(plan)
            assert made is not None
            self._keep(replace(made.record, recorded=recorded_calls(plan, made.sampled)))

    def _keep(self, record: RecordRound) -> None:
        self._number += 1
        self._kept[self._number] = record

    def _hand_over(self, maximum: int) -> None:
        """Pass the next rounds to the store, so that it has at most this many."""
        for number, record in self._kept.items():
            if len(self._handed) >= maximum:
                return
            if number in self._handed:
                continue
            try:
                self._store.defer(record, partial(self._settled, number))
            except GatewayFault:
                return  # The queue of the store is full: tried again with the next round.
            self._handed.add(number)

    def _settled(self, number: int, is_durable: bool) -> None:
        self._handed.discard(number)
        if is_durable:
            del self._kept[number]
            self._refused = 0
            self._hand_over(MAX_HANDED)
            return
        self._refused += 1
        if self._refused >= TRIES:
            self._refused = 0
            record = self._kept.pop(number)
            calls = len(record.calls) + len(record.rows)
            log.error("records of calls were refused by the store and are lost", rows=record.size)
            self._lose(self._store.now_ms(), calls)

    def _lose(self, at_ms: int, rows: int) -> None:
        self._lost = _joined(self._lost, Loss(at_ms, at_ms, rows))

    # Metrics, which are of this process and no part of the transaction

    def _task_changed(self, event: TaskChanged) -> None:
        task = event.task
        if task.finished_ms is None or task.finished_ms != task.updated_ms:
            return
        if task.owner == self._store.ownership.owner:
            sums = sums_of_task(task)
            tally = Tally(sums.principal, sums.server, sums.tool)
            tally.add(sums)
            self._measure(tally)

    def _measure(self, tally: Tally) -> None:
        metrics, server = self._metrics, tally.server
        for (outcome, _), calls in tally.ended.items():
            metrics.calls_ended.add(server, outcome.value, by=calls)
        metrics.usage_calls.add(server, by=tally.calls)
        metrics.usage_errors.add(server, by=tally.errors)
        metrics.usage_seconds.add(server, by=tally.seconds)
        metrics.usage_bytes.add(server, "in", by=tally.bytes_in)
        metrics.usage_bytes.add(server, "out", by=tally.bytes_out)
        metrics.usage_cost.add(server, by=tally.cost)


def _row_of_refusal(
    entry: AuditEntry, request: Request | None, kind: RowKind, outcome: CallOutcome, now_ms: int
) -> HistoryRow:
    return HistoryRow(
        kind=kind,
        outcome=outcome,
        caller=as_key(entry.principal),
        scope=as_key(entry.scope),
        server=cleaned(entry.server),
        tool=cleaned(entry.name),
        client=cleaned(request.client_name) if request is not None else "",
        generation=request.generation.value if request is not None else "",
        trace=trace_of(request.params) if request is not None else "",
        accepted_ms=now_ms,
        ended_ms=now_ms,
        error_type=cleaned(entry.decision),
        rule=cleaned(entry.rule),
        reason=cleaned(entry.reason, LONGEST_REASON),
        executed=Executed.NO.value,
        digest=entry.arguments_digest,
    )


def _joined(first: Loss | None, second: Loss | None) -> Loss | None:
    return first or second if first is None or second is None else first.plus(second)


def _gap(lost: Loss) -> HistoryRow:
    return HistoryRow(
        kind=RowKind.GAP,
        outcome=CallOutcome.GAP,
        accepted_ms=lost.first_ms,
        ended_ms=lost.last_ms,
        reason="rows of this time could not be written",
        count=lost.rows,
    )
