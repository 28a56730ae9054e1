"""Export and erasure of the data of one principal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from taskgate.core.governance.approval import Approval
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.raw_json import Raw
from taskgate.core.usage import UsageRow
from taskgate.replies.approvals import GrantRow
from taskgate.replies.fields import about
from taskgate.replies.history import HistoryEntry
from taskgate.replies.servers import AccountRow
from taskgate.replies.tasks import TaskRow

_Row: TypeAlias = Annotated[
    Any, Meta(description="`kind`, and the fields of that kind of data", extra_json_schema={"type": "object"})
]


class DataPage(Struct, frozen=True, kw_only=True):
    """A page of the data of a principal."""

    rows: Sequence[_Row]
    next: Annotated[str | None, about("value of `after` for the next page; null at the end")]


class ExportedTask(TaskRow, frozen=True, kw_only=True, tag_field="kind", tag="task"):
    """A task with all that is stored of its call."""

    arguments: Raw
    params: Raw
    result: Raw
    questions: Sequence[ExportedQuestion]


class ExportedQuestion(Struct, frozen=True, kw_only=True):
    """A question of a task, and its answer."""

    server: str
    method: str
    asked_at: str
    request: Raw
    answer: Raw


class ExportedEvent(Struct, frozen=True, kw_only=True, tag_field="kind", tag="event"):
    """An event for a caller."""

    event: str
    server: str
    at: str
    data: Any


class ExportedApproval(Struct, frozen=True, kw_only=True, tag_field="kind", tag="approval"):
    """A held call."""

    tool: str
    arguments: Raw
    approval: Approval


class ExportedGrant(GrantRow, frozen=True, kw_only=True, tag_field="kind", tag="grant"):
    """A standing grant."""


class ExportedRecordedCall(Struct, frozen=True, kw_only=True, tag_field="kind", tag="recorded_call"):
    """A recorded call."""

    call: RecordedCall


class ExportedCall(Struct, frozen=True, kw_only=True, tag_field="kind", tag="history"):
    """A row of history."""

    call: HistoryEntry
    content: Raw


class ExportedUsage(UsageRow, frozen=True, kw_only=True, tag_field="kind", tag="usage"):
    """Usage of one day."""


class ExportedRecord(Struct, frozen=True, kw_only=True):
    """A login, a role or another identity record, without secrets."""

    kind: str
    until_ms: int
    known: Raw


class ExportedAccount(AccountRow, frozen=True, kw_only=True, tag_field="kind", tag="account"):
    """An account at a server."""

    server: str


class ErasedCounts(Struct, frozen=True, kw_only=True):
    """The number of erased rows of each kind."""

    tasks: Annotated[int, about("number of tasks")]
    approvals: Annotated[int, about("number of approvals")]
    grants: Annotated[int, about("number of grants")]
    events: Annotated[int, about("number of events")]
    recorded_calls: Annotated[int, about("number of recorded calls")]
    history: Annotated[int, about("number of rows of history")]
    usage: Annotated[int, about("number of usage rows")]
    identity_records: Annotated[int, about("number of logins and roles")]
    open_questions: Annotated[int, about("number of questions")]
    sessions: Annotated[int, about("number of sessions")]


class Erasure(Struct, frozen=True, kw_only=True):
    """The reply to an erasure."""

    principal: Annotated[str, about("name of the principal")]
    erased: ErasedCounts
    accounts: Annotated[Sequence[str], about("servers whose account was disconnected")]
