"""Records about principals that expire: console sessions, login codes, revoked tokens, and roles as last seen."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from taskgate.core.audit.chain import AuditEntry

CONSOLE_SESSION: Final = "console_session"
REVOKED: Final = "revoked"
"""A credential that was revoked."""
"""The kind of record for an open session of the console."""
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


class IdentityStore(Protocol):
    """Expired records may or may not be found. With `announce`, the other gateways on the store read the records again."""

    def now_ms(self) -> int:
        """Return the time by the clock that all gateways on the store share."""
        ...

    async def keep_identity_record(
        self, record: IdentityRecord, entry: AuditEntry | None = None, *, announce: bool = False
    ) -> None:
        """Store a record in place of one with the same kind and name; return when it is durable."""
        ...

    def note_identity_record(self, record: IdentityRecord, *, announce: bool = False) -> None:
        """Store a record with the next commit, without waiting for it."""
        ...

    async def forget_identity_record(self, kind: str, name: str, entry: AuditEntry | None = None) -> bool:
        """Delete a record; return whether there was one."""
        ...

    async def forget_identity_records_of(self, kind: str, principal: str, entry: AuditEntry | None = None) -> int:
        """Delete all records of a kind and principal; return their number."""
        ...

    async def find_identity_record(self, kind: str, name: str) -> IdentityRecord | None: ...

    async def identity_records(self, kind: str) -> tuple[IdentityRecord, ...]: ...
