"""One row of history: a call that has ended, or a gap in which rows are missing.

Rows are ordered by their number, which begins with the time of the end: the milliseconds since 1970, then `SEQUENCE_BITS` bits
that keep rows of one millisecond apart. A range of time is therefore a range of numbers.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

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
LONGEST_REASON: Final = 160
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


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A call that has ended. Texts are cleaned and bounded by `cleaned`. Times are milliseconds since 1970 by the store's clock."""

    kind: RowKind
    outcome: CallOutcome
    number: int = 0
    """Assigned by the store when the row is written."""
    task_id: str = ""
    caller: str = ""
    """The principal."""
    scope: str = ""
    server: str = ""
    tool: str = ""
    """The tool's name at its server; of a denial the name that was requested."""
    client: str = ""
    """The name in the client's `clientInfo`."""
    generation: str = ""
    trace: str = ""
    """The trace id of the caller's W3C `traceparent`, if it sent one."""
    accepted_ms: int = 0
    sent_ms: int = 0
    """When the call was last sent to its server; 0 if it was not sent."""
    ended_ms: int = 0
    error_type: str = ""
    rule: str = ""
    """The rule, grant or policy that decided a denial."""
    reason: str = ""
    """Why it ended with this outcome. Empty if values are encrypted at rest and the text is the server's."""
    executed: str = ""
    """`yes`, `no` or `maybe`."""
    attempts: int = 0
    approval_id: str = ""
    approved_by: str = ""
    """The approvers, separated by commas."""
    asked: bool = False
    """Whether a question was asked during the call."""
    size_in: int = 0
    size_out: int = 0
    digest: str = ""
    """Digest of the arguments, as in the audit log."""
    parent: str = ""
    """The task that this one repeats."""
    count: int = 1
    """The number of equal denials that this row represents."""

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
