"""Temporary scopes, so that they outlive a restart of the gateway until they expire.

The body is opaque to the store. A change and its audit row are written together.
"""

from __future__ import annotations

import msgspec

from taskgate.core.audit.chain import AuditEntry
from taskgate.ports.topics import SCOPES
from taskgate.store.locks import Locks
from taskgate.store.operation import Operation, Query
from taskgate.store.operations.audit import RecordAudit
from taskgate.store.reader import Reader
from taskgate.store.transaction import Transaction


class KeptScope(msgspec.Struct, frozen=True):
    """A scope as stored. `expires_ms` is by the store's clock."""

    name: str
    expires_ms: int
    body: bytes


class KeepScope(Operation[None], frozen=True):
    """Store a scope. Names are unique."""

    scope: KeptScope
    entry: AuditEntry

    @property
    def locks(self) -> Locks:
        return _scope_locks(self.scope.name)

    def run(self, tx: Transaction) -> None:
        tx.announce(SCOPES, self.scope.name)
        tx.run("keep_scope", name=self.scope.name, expires_ms=self.scope.expires_ms, body=self.scope.body)
        RecordAudit(self.entry).run(tx)


class ForgetScope(Operation[None], frozen=True):
    """Delete a scope. Does nothing if another gateway has deleted it already, so that its end is recorded once."""

    name: str
    entry: AuditEntry

    @property
    def locks(self) -> Locks:
        return _scope_locks(self.name)

    def run(self, tx: Transaction) -> None:
        if tx.run("forget_scope", name=self.name).rowcount == 1:
            tx.announce(SCOPES, self.name)
            RecordAudit(self.entry).run(tx)


class KeptScopes(Query[tuple[KeptScope, ...]], frozen=True):
    """All scopes, including expired ones."""

    def run(self, reader: Reader) -> tuple[KeptScope, ...]:
        return tuple(KeptScope(*row) for row in reader.run("kept_scopes"))


def _scope_locks(name: str) -> Locks:
    return Locks(names=(f"scope:{name}",))
