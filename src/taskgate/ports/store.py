"""Everything a durable store offers, in one protocol, for the composition root. Use cases ask for the narrower ones.

The append-only, hash-chained record of what was asked, decided and done. The chain itself is `core.audit`.

Changes of tasks and approvals append their row in their own transaction. `record` is for facts that have no such
change, above all plain calls that passed through: they ride along with the next commit, because a plain call must
not wait for the disk.

The last known lists of every server, so that a gateway that starts has something to show before any server answers.

A catalog is a copy: it may be lost without harm, and it says how old it is. What its body means is the gateway's business.

The scopes that were handed over at run time, so that they outlive a restart of the gateway until their time is over.

What a body means is the gateway's business. A change and the audit row that proves it are written together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from taskgate.core.audit.chain import AuditEntry, Row
from taskgate.core.governance.rehearse import RecordedCall
from taskgate.core.usage import UsageRow
from taskgate.ports.approval_store import ApprovalStore
from taskgate.ports.shared_questions import QuestionStore
from taskgate.ports.store_answers import EventOutbox, Voided
from taskgate.ports.task_store import TaskStore


class AuditTime(NamedTuple):
    """Of one row of the audit log."""

    number: int
    hash: str
    at_ms: int


class AuditLog(Protocol):
    def now_ms(self) -> int:
        """The store's time, by which rows are stamped."""
        ...

    def record(self, entry: AuditEntry) -> None:
        """Append soon. `at_ms` 0 is replaced by the store's time."""
        ...

    async def record_now(self, entry: AuditEntry) -> None:
        """Append and return when it is durable."""
        ...

    async def recorded(self) -> None:
        """Return when every row that was recorded before is durable."""
        ...

    def audit_head(self) -> tuple[int, str]:
        """The number and the hash of the last row that is durable; 0 and the chain's beginning if there is none."""
        ...

    @property
    def audit_chain(self) -> str:
        """The name of our chain where each gateway and start has its own; empty where there is one."""
        ...

    async def begin_chain(self) -> None:
        """Where each start has a chain of its own, write its first row, which names the ends of the others."""
        ...

    async def ended_chains(self) -> tuple[str, ...]:
        """Chains that nobody appends to any more."""
        ...

    async def audit_times(self, after: int = 0, limit: int = 1_000, *, chain: str = "") -> tuple[AuditTime, ...]:
        """When the rows after this one were written."""
        ...

    async def forget_audit(self, up_to: int, *, chain: str = "", mark: bytes = b"") -> None:
        """Remove the rows up to this number, which is not the last, of ours or of an ended chain. `mark` says so, signed, for
        whoever reads the chain where our files are not.
        """
        ...

    async def audit_rows(self, after: int = 0, limit: int = 1_000, *, chain: str = "") -> tuple[Row, ...]:
        """Of our chain, or of the one named."""
        ...


class KeptCatalog(msgspec.Struct, frozen=True):
    """`fingerprint` tells which configuration of the server it belongs to, `listed_ms` when the server was last asked."""

    server: str
    fingerprint: str
    listed_ms: int
    body: bytes


class CatalogStore(Protocol):
    def keep_catalog(self, catalog: KeptCatalog) -> None:
        """Write soon, in place of what was kept for that server before."""
        ...

    def announce_lists(self, server: str, kinds: Iterable[str]) -> None:
        """Tell the other gateways on this store, soon, that the server said that these of its lists changed."""
        ...

    def catalog_confirmed(self, server: str, listed_ms: int) -> None:
        """The server was asked again and offers the same: only the age changes. Written soon."""
        ...

    async def kept_catalogs(self) -> tuple[KeptCatalog, ...]: ...

    def forget_catalog(self, server: str) -> None:
        """Soon."""
        ...


class KeptScope(msgspec.Struct, frozen=True):
    """`expires_ms` is the store's time."""

    name: str
    expires_ms: int
    body: bytes


class ScopeStore(Protocol):
    def now_ms(self) -> int:
        """The store's time, by which scopes end."""
        ...

    async def keep_scope(self, scope: KeptScope, entry: AuditEntry) -> None:
        """Returns when it is on the disk. A name is kept once."""
        ...

    async def forget_scope(self, name: str, entry: AuditEntry) -> None:
        """Returns when it is off the disk."""
        ...

    async def kept_scopes(self) -> tuple[KeptScope, ...]:
        """All of them, also those whose time is over."""
        ...


class KeptServer(msgspec.Struct, frozen=True):
    """A server that a caller added; `scope` sees it."""

    name: str
    scope: str
    body: bytes


class ServerStore(Protocol):
    """The servers that callers added, for all gateways on a store."""

    async def keep_server(self, server: KeptServer) -> bool:
        """False if there is one of this name already."""
        ...

    async def forget_server(self, name: str) -> bool:
        """Whether there was one."""
        ...

    async def kept_servers(self) -> tuple[KeptServer, ...]: ...


class RecordedPage(NamedTuple):
    """`after` asks for the next page; None if this is the last."""

    calls: tuple[RecordedCall, ...]
    after: int | None


class UsageStore(Protocol):
    """Calls that were recorded to try other rules on them, and who used what by day."""

    def record_calls(self, calls: Sequence[RecordedCall]) -> None:
        """Write soon. `at_ms` 0 is replaced by the store's time."""
        ...

    async def recorded_calls(self, since_ms: int, after: int = 0, limit: int = 1_000) -> RecordedPage:
        """In the order in which they were recorded."""
        ...

    async def last_recorded_call(self) -> int:
        """Its number; 0 if there is none."""
        ...

    async def forget_recorded_calls(self, keep_ms: int, portions: int = 1) -> bool:
        """Remove so many portions of the calls that are older, or too many, and of the usage of long ago; whether there may be
        more."""
        ...

    def add_usage(self, rows: Sequence[UsageRow]) -> None:
        """Add soon to what is kept for the same day, principal, server and tool."""
        ...

    async def usage(self, first: str, last: str) -> tuple[UsageRow, ...]:
        """Of all days from the first to the last, as `2026-01-31`."""
        ...


CONSOLE_SESSION: Final = "console_session"
"""The kind of record that is somebody's open session of the pages."""
LOGIN_CODE: Final = "login_code"
"""The kind of record that logs somebody into the pages once, at whichever gateway on the store."""


PERSON: Final = "person"
"""The kind of record that holds the roles with which an issuer's subject was last seen."""
LOGIN_RECORDS: Final = (CONSOLE_SESSION, LOGIN_CODE, PERSON)
"""Kinds of records that a login leaves behind, and that are made anew by the next one."""


class IdentityRecord(msgspec.Struct, frozen=True):
    """Something known about a principal until a time: a session of the console, a revoked token, its roles when last seen."""

    kind: str
    name: str
    principal: str
    expires_ms: int
    body: bytes = b""


class IdentityStore(Protocol):
    """Records whose time is over may or may not be found. With `announce` the other gateways on the store read theirs again."""

    def now_ms(self) -> int:
        """By the clock that all gateways on the store share."""
        ...

    async def keep_identity_record(
        self, record: IdentityRecord, entry: AuditEntry | None = None, *, announce: bool = False
    ) -> None:
        """Returns when it is durable, in place of one of the same kind and name."""
        ...

    def note_identity_record(self, record: IdentityRecord, *, announce: bool = False) -> None:
        """The same soon, without waiting for the disk."""
        ...

    async def forget_identity_record(self, kind: str, name: str, entry: AuditEntry | None = None) -> bool:
        """Whether there was one."""
        ...

    async def forget_identity_records_of(self, kind: str, principal: str, entry: AuditEntry | None = None) -> int:
        """How many there were."""
        ...

    async def find_identity_record(self, kind: str, name: str) -> IdentityRecord | None: ...

    async def identity_records(self, kind: str) -> tuple[IdentityRecord, ...]: ...


class Erased(msgspec.Struct, frozen=True):
    """How much of one person was forgotten."""

    tasks: int = 0
    approvals: int = 0
    grants: int = 0
    events: int = 0
    recorded_calls: int = 0
    usage: int = 0
    identity_records: int = 0
    open_questions: int = 0
    """Where gateways share a store: what servers asked them, and what they answered."""
    sessions: int = 0
    """Where gateways share a store: those that no living gateway holds."""


class Unfinished(msgspec.Struct, frozen=True):
    """Nothing was erased: these tasks, or held calls, of theirs have not ended. At most 100 are named."""

    ids: tuple[str, ...]


class PersonalDataStore(Protocol):
    """What is kept under one person's name."""

    async def tasks_of(self, principal: str, after: str = "", limit: int = 50) -> tuple[str, ...]:
        """The ids of their tasks, oldest first, also of those whose results are gone."""
        ...

    async def identity_records_of(self, principal: str) -> tuple[IdentityRecord, ...]: ...

    async def erase(self, principal: str, kept_records: str, entry: AuditEntry) -> Erased | Unfinished:
        """Forget all of it but the audit chain and the identity records of the kind that is kept, then append the entry.

        Returns when the bytes are gone from the store's files as far as this is in the store's hands.
        """
        ...


class RestoredStore(Protocol):
    """Whether the database is older than what was last written to it, because it was restored from a backup."""

    @property
    def is_restored(self) -> bool:
        """What it holds as waiting may have run since, and what it holds as allowed may have been revoked."""
        ...

    async def accept_restored(self) -> Voided:
        """Its open calls have been dealt with: end grants, unspent approvals and logins. From then on it is the current store."""
        ...

    async def declare_restored(self, entry: AuditEntry) -> None:
        """The next start treats the store as restored."""
        ...

    async def trust_restored(self, entry: AuditEntry) -> bool:
        """The next start treats the store as the current one; whether it would have treated it as restored."""
        ...


class Store(
    TaskStore,
    ApprovalStore,
    EventOutbox,
    AuditLog,
    CatalogStore,
    ScopeStore,
    UsageStore,
    IdentityStore,
    PersonalDataStore,
    RestoredStore,
    Protocol,
):
    """One database, and the views of it."""

    @property
    def shared_servers(self) -> ServerStore | None:
        """None where one gateway has the store to itself: what callers add there lives as long as it runs."""
        ...

    @property
    def shared_questions(self) -> QuestionStore | None:
        """Where other gateways see what is asked here, and answer it; None where there are no others."""
        ...
