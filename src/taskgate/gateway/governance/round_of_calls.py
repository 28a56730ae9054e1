"""The calls and refusals of one round, and what is written of them.

Collecting is on the hot path, so it only counts and appends. What takes longer is done when the round has ended: digests of
arguments and reasons need the arguments parsed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry, revisions
from taskgate.core.digest import digest_of_bytes
from taskgate.core.errors import Executed
from taskgate.core.generations.generation import Generation
from taskgate.core.history.row import HistoryRow
from taskgate.core.history.sums import Tally
from taskgate.core.identity.caller import Caller
from taskgate.core.settings.governance import Action
from taskgate.core.usage import OTHERS
from taskgate.gateway.catalog.tool_entries import schema_of
from taskgate.gateway.catalog.views import ToolRef
from taskgate.gateway.governance.failure_reason import failure_reason
from taskgate.gateway.governance.gated_call import GatedCall
from taskgate.gateway.governance.sampled_calls import MAX_BYTES, SampledCall
from taskgate.gateway.plan import Plan
from taskgate.gateway.requests.request import Request
from taskgate.gateway.requests.strict_arguments import arguments_digest
from taskgate.store.operations.journal import RecordRound

KINDS_PER_ROUND: Final = 2_000
REFUSALS_PER_ROUND: Final = 50
"""Refusals of anonymous callers, and refusals while the store cannot be written to, that get an audit entry each."""
REFUSED_KINDS_PER_ROUND: Final = 500
MAX_TALLIES: Final = 5_000
PARSED_BYTES_PER_ROUND: Final = 128 * 1024
"""Bytes of arguments that are parsed for canonical digests in one round; beyond that the raw bytes are hashed."""
PARSED_BYTES_PER_PIECE: Final = 16 * 1024
"""Also the maximum size of arguments that are kept until the round ends. Of larger ones only the digest is kept."""
CALLS_PER_PIECE: Final = 50
_OTHER_CALLS: Final = (0, 0)
"""The key of plain calls beyond the bound; no object has this identity."""


class SampledRequest(msgspec.Struct, frozen=True):
    """What decisions can depend on, of the request of a call that is recorded for rehearsals. It keeps no arguments."""

    caller: Caller
    client: str
    generation: Generation
    server_requested: bool
    """Whether its session named the server."""
    from_script: bool

    @classmethod
    def of(cls, request: Request) -> SampledRequest:
        return cls(
            caller=request.caller,
            client=request.client_name,
            generation=request.generation,
            server_requested=bool(request.narrowing.server_lists),
            from_script=bool(request.script),
        )


class KeptCall(msgspec.Struct, frozen=True, kw_only=True):
    """A plain call that gets an audit entry of its own."""

    caller: Caller
    tool: ToolRef
    outcome: str
    executed: Executed
    params: bytes
    digest: str | None
    """Set if its arguments are too large to be kept."""
    sampled: SampledRequest | None
    """What is recorded of its request for rehearsals, if it is."""
    row: HistoryRow | None
    why: str
    """The text of its error, not redacted."""


class _Kind(NamedTuple):
    """Calls of one kind. The references to caller and tool keep their `id()` from being reused."""

    caller: Caller
    tool: ToolRef
    outcome: str
    executed: Executed


class Written(NamedTuple):
    """What is written of a round, and the calls that are to be recorded with it."""

    record: RecordRound
    sampled: list[SampledCall]


class Round:
    """What has ended since the previous round ended."""

    def __init__(self) -> None:
        self.revision = ""
        """The revision of the rules, set when the round ends."""
        self.calls: list[KeptCall] = []
        self.more: dict[tuple[int, int, str, Executed], tuple[_Kind, int]] = {}
        """The number of further calls of each kind."""
        self.others = 0
        """Calls of still other kinds."""
        self.rows: list[HistoryRow] = []
        self.grown: list[HistoryRow] = []
        """Rows of earlier rounds that sum equal refusals."""
        self.entries: list[AuditEntry] = []
        self.refusals: Counter[tuple[str, str, str, str, str]] = Counter()
        """Refusals without an entry of their own, by event, principal, scope, decision and rule."""
        self.failed: Counter[tuple[str, str]] = Counter()
        """Failed authentications by address and reason."""
        self.sampled: list[SampledCall] = []
        self.unrecorded = 0
        self.plain: dict[tuple[int, int], Tally] = {}
        """Plain calls, by the identity of caller and tool."""
        self.named: dict[tuple[str, str, str], Tally] = {}
        """Refusals and model calls, by principal, server and tool; of a round that has ended, all calls."""
        self._summed_refusals = 0

    @property
    def is_empty(self) -> bool:
        refused = self.rows or self.grown or self.entries or self.refusals or self.failed
        return not (self.calls or refused or self.sampled or self.unrecorded or self.plain or self.named)

    @property
    def size(self) -> int:
        """About as many rows as will be written of it."""
        return len(self.calls) + len(self.rows) + len(self.entries)

    def begin_tally(self, caller: Caller, tool: ToolRef) -> Tally:
        """Add the tally of the first plain call of this caller and tool."""
        if len(self.plain) + len(self.named) >= MAX_TALLIES:
            return self.plain.setdefault(_OTHER_CALLS, Tally(OTHERS, OTHERS, OTHERS))
        tally = self.plain[id(caller), id(tool)] = Tally(caller.principal, tool.server, tool.name, (caller, tool))
        return tally

    def tally(self, principal: str, server: str, tool: str) -> Tally:
        key = (principal, server, tool)
        if key not in self.named and len(self.plain) + len(self.named) >= MAX_TALLIES:
            key = (OTHERS, OTHERS, OTHERS)
        return self.named.setdefault(key, Tally(*key))

    def leave_out(self) -> None:
        """Count a call that could have been recorded and is not."""
        self.unrecorded += 1

    def sum_call(self, caller: Caller, tool: ToolRef, outcome: str, executed: Executed) -> None:
        """Count a call for which there is no entry of its own."""
        key = (id(caller), id(tool), outcome, executed)
        kind, calls = self.more.get(key, (None, 0))
        if kind is None:
            if len(self.more) >= KINDS_PER_ROUND:
                self.others += 1
                return
            kind = _Kind(caller, tool, outcome, executed)
        self.more[key] = (kind, calls + 1)

    def sum_refusal(self, entry: AuditEntry) -> None:
        """Add the entry of a refusal whose equals may be many: the first ones get their own, the others are counted."""
        self._summed_refusals += 1
        if self._summed_refusals <= REFUSALS_PER_ROUND:
            self.entries.append(entry)
        elif len(self.refusals) < REFUSED_KINDS_PER_ROUND:
            self.refusals[entry.event, entry.principal, entry.scope, entry.decision, entry.rule] += 1
        else:
            self.refusals[entry.event, "", "", "", ""] += 1

    def fail_authentication(self, address: str, reason: str) -> None:
        if len(self.failed) >= REFUSED_KINDS_PER_ROUND and (address, reason) not in self.failed:
            address = ""
        self.failed[address, reason] += 1

    def forget(self, principal: str, key: str) -> None:
        """Drop the data of a person, whose rows of history have this key. Audit entries are proof and stay."""
        self.rows = [row for row in self.rows if row.caller != key]
        self.grown = [row for row in self.grown if row.caller != key]
        self.calls = [
            replace(call, row=None, sampled=None) if call.caller.principal == principal else call for call in self.calls
        ]
        self.sampled = [one for one in self.sampled if one.call.principal != principal]
        self.plain = {key: tally for key, tally in self.plain.items() if tally.principal != principal}
        self.named = {key: tally for key, tally in self.named.items() if tally.principal != principal}

    def end(self, revision: str) -> None:
        """Add up the tallies. `revision` is that of the rules."""
        self.revision = revision
        for found in self.plain.values():
            tally = self.named.setdefault(
                (found.principal, found.server, found.tool), Tally(found.principal, found.server, found.tool)
            )
            tally.add_plain(found)
        self.plain = {}

    def written(self, plan: Plan) -> Iterator[Written | None]:
        """Yield what is written, after None between steps of a few milliseconds. Changes nothing of the round, so it can be
        repeated."""
        calls, entries, sampled = list[HistoryRow](), list[AuditEntry](), list(self.sampled)
        read = piece = 0
        for number, call in enumerate(self.calls, 1):
            if piece + len(call.params) > PARSED_BYTES_PER_PIECE or number % CALLS_PER_PIECE == 0:
                piece = 0
                yield None
            read, piece = read + len(call.params), piece + len(call.params)
            arguments = _arguments(call.params) if call.digest is None else None
            is_parsed = arguments is not None and read <= PARSED_BYTES_PER_ROUND
            digest = call.digest
            if digest is None:
                digest = arguments_digest(arguments or b"") if is_parsed else digest_of_bytes(arguments or b"")
            entries.append(self._entry(_Kind(call.caller, call.tool, call.outcome, call.executed), "call", digest))
            if call.row is not None:
                reason = failure_reason(plan, call.why, arguments if is_parsed else None)
                calls.append(
                    replace(call.row, digest=digest, reason=reason) if reason else replace(call.row, digest=digest)
                )
            if call.sampled is not None:
                sampled.append(sampled_plain_call(call.sampled, call.tool, arguments))
        entries += self._summed()
        record = RecordRound(
            calls=calls,
            rows=self.rows,
            grown=self.grown,
            entries=[*self.entries, *entries],
            sums=[tally.sums for tally in self.named.values()],
            unrecorded=self.unrecorded,
        )
        yield Written(record, sampled if plan.governing.record is not None else [])

    def _summed(self) -> list[AuditEntry]:
        found = [
            self._entry(kind, "calls", "", f"{calls} more calls of this kind") for kind, calls in self.more.values()
        ]
        if self.others:
            reason = f"{self.others} more calls of other kinds"
            found.append(
                AuditEntry(0, "calls", decision="forward", reason=reason, outcome="other", executed=str(Executed.MAYBE))
            )
        for (event, principal, scope, decision, rule), count in self.refusals.items():
            reason = f"{count} more refusals of this kind"
            found.append(AuditEntry(0, event, principal, scope, rule=rule, decision=decision, reason=reason))
        for (address, reason), count in self.failed.items():
            counted = f"{count} from {address}" if address else f"{count} from other addresses"
            found.append(AuditEntry(0, "authentication_failed", kind="credential", decision=reason, reason=counted))
        return found

    def _entry(self, kind: _Kind, event: str, digest: str, reason: str = "") -> AuditEntry:
        caller, tool, outcome, executed = kind
        return AuditEntry(
            at_ms=0,
            event=event,
            principal=caller.principal,
            scope=caller.scope,
            server=tool.server,
            name=tool.name,
            arguments_digest=digest,
            rule=tool.decision.rule,
            decision="forward",
            policy_revision=revisions(self.revision, tool.revision),
            reason=reason,
            outcome=outcome,
            executed=str(executed),
        )


def sampled_plain_call(request: SampledRequest, tool: ToolRef, arguments: bytes | None) -> SampledCall:
    """A call that was simply forwarded, as it is recorded. `arguments` is None if they are too long."""
    too_long = arguments is None or len(arguments) > MAX_BYTES
    call = GatedCall(
        principal=request.caller.principal,
        roles=request.caller.roles,
        scope=request.caller.scope,
        server=tool.server,
        name=tool.name,
        arguments=b"" if too_long or arguments is None else arguments,
        input_schema=schema_of(tool.entry),
        from_script=request.from_script,
        client=request.client,
        generation=request.generation,
        risk=tool.risk,
    )
    return SampledCall(
        call=call,
        before=Action.FORWARD,
        rule=tool.decision.rule,
        server_requested=request.server_requested,
        listed=tool.entry is not None,
        too_long=too_long,
    )


def _arguments(params: bytes) -> bytes:
    arguments = wire.members_of(params).get("arguments") if params else None
    return bytes(arguments) if arguments is not None else b"{}"
