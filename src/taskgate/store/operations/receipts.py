"""The data with which a channel finds its messages about approvals, also after a restart."""

from __future__ import annotations

import msgspec

from taskgate.store.locks import Locks
from taskgate.store.operation import Operation, Query
from taskgate.store.reader import Reader
from taskgate.store.transaction import Transaction


class StoredReceipt(msgspec.Struct, frozen=True):
    """The data with which a channel finds its message about an approval. `place` identifies the channel."""

    approval_id: str
    place: str
    workflow: str
    receipt: str


class Receipts(Query[tuple[StoredReceipt, ...]], frozen=True):
    limit: int = 50_000

    def run(self, reader: Reader) -> tuple[StoredReceipt, ...]:
        return tuple(StoredReceipt(*row) for row in reader.run("all_receipts", limit=self.limit))


class PutReceipt(Operation[None], frozen=True):
    """Store that a notification was sent to this place, replacing an earlier receipt of it."""

    receipt: StoredReceipt

    @property
    def locks(self) -> Locks:
        return Locks(approvals=(self.receipt.approval_id,))

    def run(self, tx: Transaction) -> None:
        tx.run("put_receipt", **msgspec.structs.asdict(self.receipt))


class DropReceipt(Operation[None], frozen=True):
    approval_id: str
    place: str

    @property
    def locks(self) -> Locks:
        return Locks(approvals=(self.approval_id,))

    def run(self, tx: Transaction) -> None:
        tx.run("drop_receipt", approval_id=self.approval_id, place=self.place)
