"""One row of history: a call that has ended, or a gap in which rows are missing.

Rows are ordered by their number, which begins with the time of the end: the milliseconds since 1970, then `SEQUENCE_BITS` bits
that keep rows of one millisecond apart. A range of time is therefore a range of numbers.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from taskgate.core.digest import digest_of_bytes
from taskgate.core.identity.identity import tenant_of
from taskgate.core.ids import is_task_id

SEQUENCE_BITS: Final = 20
_SEQUENCES: Final = 1 << SEQUENCE_BITS
LATEST_MS: Final = (1 << 43) - 1
"""Later times do not fit into a number of 63 bits."""
PREFIX: Final = "hr_"
"""Prefix of the ids of rows that have no task."""
_DIGITS: Final = 16
LONGEST_NAME: Final = 120
LONGEST_REASON: Final = 200
LONGEST_KEY: Final = 300
_DISTINCT: Final = 16


class RowKind(StrEnum):
    TASK = "task"
    CALL = "call"
    """A plain call: forwarded without becoming a task."""
    DENIAL = "denial"
    """A request that was refused before anything was sent. `count` equal ones are one row."""
    GAP = "gap"
    """Rows from `accepted_ms` to `ended_ms` were lost, because they could not be written; `count` of them are known."""


class CallOutcome(StrEnum):
    """How a call ended."""

    OK = "ok"
    TOOL_ERROR = "tool_error"
    """The tool returned a result with `isError`. The call itself worked."""
    FAILED = "failed"
    """No result: the server was unreachable, timed out or returned a JSON-RPC error, or the gateway failed."""
    DENIED = "denied"
    """Refused by a rule, a policy, a pin, a scope or a limit; nothing was sent."""
    REJECTED = "rejected"
    """An approver denied it, or it was refused after an approval."""
    EXPIRED = "expired"
    """It was not approved, or not run, in time."""
    CANCELLED = "cancelled"
    OUTCOME_UNKNOWN = "outcome_unknown"
    """The connection was lost after the call was sent, and it may not be repeated."""
    GAP = "gap"
    """No call: see `RowKind.GAP`."""


BAD_OUTCOMES: Final = frozenset(CallOutcome) - {CallOutcome.OK, CallOutcome.GAP}


class EndedCall(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a call that has ended, and returned by the API in the same form. New members are added at the end.

    Texts are cleaned and bounded by `cleaned`.
    """

    kind: Annotated[RowKind, Meta(description="kind of row")]
    outcome: Annotated[CallOutcome, Meta(description="how it ended; `tool_error`: a result with `isError`")]
    caller: Annotated[str, Meta(description="principal of the caller")] = ""
    scope: Annotated[str, Meta(description="scope of the call")] = ""
    server: Annotated[str, Meta(description="name of the server")] = ""
    tool: Annotated[str, Meta(description="name of the tool at its server")] = ""
    """Of a denial the name that was requested."""
    client: Annotated[str, Meta(description="name of the client; may be empty")] = ""
    """The name in the client's `clientInfo`."""
    generation: Annotated[str, Meta(description="`stateful` or `stateless`; may be empty")] = ""
    error_type: Annotated[str, Meta(description="error type; empty without an error")] = ""
    rule: Annotated[str, Meta(description="rule that decided it; may be empty")] = ""
    """The rule, grant or policy that decided a denial."""
    reason: Annotated[str, Meta(description="why it ended like this; may be empty")] = ""
    """Empty if values are encrypted at rest and the text is the server's."""
    executed: Annotated[str, Meta(description="whether the tool ran: `yes`, `no` or `maybe`")] = ""
    attempts: Annotated[int, Meta(description="number of times the call was sent")] = 0
    asked: Annotated[bool, Meta(description="whether a question was asked during the call")] = False
    approval_id: Annotated[str, Meta(description="its approval; may be empty")] = ""
    approved_by: Annotated[str, Meta(description="approvers, separated by commas; may be empty")] = ""
    size_in: Annotated[int, Meta(description="size of the arguments in bytes")] = 0
    size_out: Annotated[int, Meta(description="size of the result in bytes")] = 0
    digest: Annotated[str, Meta(description="digest of the arguments, as in the audit log; may be empty")] = ""
    trace: Annotated[str, Meta(description="trace id that the caller sent; may be empty")] = ""
    """From its W3C `traceparent`."""
    parent: Annotated[str, Meta(description="task that this one repeats; may be empty")] = ""
    count: Annotated[int, Meta(description="number of equal calls that the row represents")] = 1
    """Of denials; of a gap the number of rows that are known to be lost."""


class HistoryRow(EndedCall, frozen=True, kw_only=True):
    """A call that has ended, as it is stored. Times are milliseconds since 1970 by the store's clock."""

    number: int = 0
    """Assigned by the store when the row is written, unless the row will grow."""
    task_id: str = ""
    accepted_ms: int = 0
    sent_ms: int = 0
    """When the call was last sent to its server; 0 if it was not sent."""
    ended_ms: int = 0

    @property
    def id(self) -> str:
        return self.task_id or row_id(self.number)

    @property
    def tenant(self) -> str:
        return tenant_of(self.caller)

    @property
    def duration_ms(self) -> int:
        """From acceptance to end. A clock that was set back meanwhile makes it 0."""
        return max(0, self.ended_ms - self.accepted_ms) if self.accepted_ms else 0


def why(outcome: CallOutcome, error_type: str, reason: str, rule: str) -> tuple[str, ...]:
    """Why a call ended like this, in parts. The rule that forwarded a call is not why it failed."""
    forwarded = outcome in (CallOutcome.OK, CallOutcome.FAILED, CallOutcome.TOOL_ERROR)
    return tuple(part for part in (error_type, reason, "" if forwarded else rule) if part)


def first_number(at_ms: int) -> int:
    """The smallest number that a row of this millisecond can have."""
    return min(max(at_ms, 0), LATEST_MS) << SEQUENCE_BITS


def numbered(at_ms: int, sequence: int) -> int:
    return first_number(at_ms) | sequence % _SEQUENCES


def row_id(number: int) -> str:
    return f"{PREFIX}{number:0{_DIGITS}x}"


def number_of(text: str) -> int | None:
    """The number in the id of a row without a task; None if it is no such id."""
    digits = text.removeprefix(PREFIX)
    if not text.startswith(PREFIX) or len(digits) != _DIGITS or not set(digits) <= set("0123456789abcdef"):
        return None
    number = int(digits, 16)
    return number if number < 1 << 63 else None


def is_row_id(text: str) -> bool:
    """Whether the text has the form of the id of a row. Such a row need not exist."""
    return is_task_id(text) or number_of(text) is not None


def cleaned(text: str, maximum: int = LONGEST_NAME) -> str:
    """Text that every database and index accepts: bounded, and without control characters and lone surrogates."""
    if len(text) > maximum:
        text = text[: maximum - 1] + "…"
    if text.isascii() and text.isprintable():
        return text
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown.encode("utf-8", "replace").decode()


def as_key(name: str) -> str:
    """The name of a principal or scope as rows have it. Different names stay different: unlike other text, it is not shortened or
    cleaned unless no database could store or index it, and then a digest keeps it apart."""
    if len(name) <= LONGEST_KEY and "\x00" not in name and (name.isascii() or not _has_surrogate(name)):
        return name
    raw = name.encode("utf-8", "surrogatepass")
    begin = name[: LONGEST_KEY - _DISTINCT - 1].encode("utf-8", "replace").decode().replace("\x00", "?")
    return f"{begin}~{digest_of_bytes(raw)[-_DISTINCT:]}"


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)
