"""Records about principals that expire: console sessions, login codes, revoked tokens, and roles as last seen.

Expired records may or may not be found.
"""

from __future__ import annotations

from typing import Final

import msgspec

from taskgate.core.audit.chain import AuditEntry
from taskgate.ports.topics import TOKENS
from taskgate.store.locks import Locks
from taskgate.store.operation import Operation, Query
from taskgate.store.operations.audit import RecordAudit
from taskgate.store.reader import Reader
from taskgate.store.rows import record_from
from taskgate.store.transaction import Transaction

CONSOLE_SESSION: Final = "console_session"
"""The kind of record for an open session of the console."""
REVOKED: Final = "revoked"
"""A credential that was revoked."""
LOGIN_CODE: Final = "login_code"
"""The kind of record for a code that logs a person into the console once, at any gateway on the store."""

PERSON: Final = "person"
"""The kind of record for the roles that an issuer last gave to a subject."""
LOGIN_RECORDS: Final = (CONSOLE_SESSION, LOGIN_CODE, PERSON)
"""Kinds of records that a login creates, and the next login creates again."""


class IdentityRecord(msgspec.Struct, frozen=True):
    """A fact about a principal that expires: a console session, a revoked token, its roles when last seen."""

    kind: str
    name: str
    principal: str
    expires_ms: int
    body: bytes = b""


class KeepIdentityRecord(Operation[None], frozen=True):
    """Store a record in place of one with the same kind and name. With `announce`, the other gateways on the store read the records
    again."""

    record: IdentityRecord
    entry: AuditEntry | None = None
    announce: bool = False

    @property
    def locks(self) -> Locks:
        return identity_locks(self.record.principal)

    def run(self, tx: Transaction) -> None:
        record = self.record
        values = {"kind": record.kind, "name": record.name, "principal": record.principal}
        tx.run("keep_identity_record", expires_ms=record.expires_ms, body=record.body, **values)
        if self.entry is not None:
            RecordAudit(self.entry).run(tx)
        if self.announce:
            tx.announce(TOKENS, record.name)


class ForgetIdentityRecord(Operation[bool], frozen=True):
    """Delete a record; return whether there was one."""

    kind: str
    name: str
    entry: AuditEntry | None = None

    @property
    def locks(self) -> Locks:
        return identity_locks(self.name)

    def run(self, tx: Transaction) -> bool:
        found = tx.run("forget_identity_record", kind=self.kind, name=self.name).rowcount == 1
        if found and self.entry is not None:
            RecordAudit(self.entry).run(tx)
        return found


class ForgetIdentityRecordsOf(Operation[int], frozen=True):
    """Delete all records of a kind and principal; return their number."""

    kind: str
    principal: str
    entry: AuditEntry | None = None

    @property
    def locks(self) -> Locks:
        return identity_locks(self.principal)

    def run(self, tx: Transaction) -> int:
        count = tx.run("forget_identity_records_of", kind=self.kind, principal=self.principal).rowcount
        if count and self.entry is not None:
            RecordAudit(self.entry).run(tx)
        return count


class FindIdentityRecord(Query[IdentityRecord | None], frozen=True):
    kind: str
    name: str

    def run(self, reader: Reader) -> IdentityRecord | None:
        row = reader.run("find_identity_record", kind=self.kind, name=self.name).fetchone()
        return None if row is None else record_from(IdentityRecord, row)


class IdentityRecords(Query[tuple[IdentityRecord, ...]], frozen=True):
    kind: str

    def run(self, reader: Reader) -> tuple[IdentityRecord, ...]:
        return tuple(record_from(IdentityRecord, row) for row in reader.run("identity_records", kind=self.kind))


class IdentityRecordsOf(Query[tuple[IdentityRecord, ...]], frozen=True):
    principal: str

    def run(self, reader: Reader) -> tuple[IdentityRecord, ...]:
        return tuple(
            record_from(IdentityRecord, row) for row in reader.run("identity_records_of", principal=self.principal)
        )


def identity_locks(name: str) -> Locks:
    return Locks(names=(f"identity:{name}",))
