"""The audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Struct

from taskgate.core.audit.chain import AuditEntry
from taskgate.replies.fields import about


class AuditRow(AuditEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry at its position in the audit log. Empty fields are omitted, and no others."""

    number: Annotated[int, about("position in the hash chain")]
    hash: Annotated[str, about("hash of the row")]
    chain: Annotated[str, about("with a shared store, its chain: one for each start of a gateway")] = ""
    kind: Annotated[str, about("kind of the subject, for example `tool`")] = ""
    executed: Annotated[str, about("whether the tool ran: `no`, `maybe` or `yes`")] = ""


class AuditPage(Struct, frozen=True, kw_only=True):
    """A page of the audit log."""

    rows: Annotated[Sequence[AuditRow], about("empty fields are omitted")]
    next: Annotated[
        Any,
        about("value of `before` for the next page: a number, with a shared store a text; null at the end"),
    ]


class AuditChain(Struct, frozen=True, kw_only=True):
    """The head of the hash chain."""

    rows: Annotated[int, about("number of rows")]
    head: Annotated[str, about("hash of the last row")]
    whole: Annotated[bool, about("whether the last rows verify")]
    verified: Annotated[int, about("number of rows that were verified")]
    problem: Annotated[str, about("what does not verify; empty if `whole`")]
