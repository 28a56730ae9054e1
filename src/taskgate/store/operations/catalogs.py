"""The last known lists of every server, so that a gateway that starts can show them before any server is connected.

A catalog is a cache: losing it does no harm, and it records its age. Its body is opaque to the store.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import msgspec

from taskgate.ports.topics import LISTS, list_hint
from taskgate.store.operation import Operation, Query
from taskgate.store.reader import Reader
from taskgate.store.transaction import Transaction


class KeptCatalog(msgspec.Struct, frozen=True):
    """`fingerprint` identifies the configuration of the server, `listed_ms` is the time of its last reply."""

    server: str
    fingerprint: str
    listed_ms: int
    body: bytes


class KeepCatalog(Operation[None], frozen=True):
    """Replace the catalog of that server."""

    catalog: KeptCatalog

    def run(self, tx: Transaction) -> None:
        kept = self.catalog
        values = {"server": kept.server, "fingerprint": kept.fingerprint, "body": kept.body}
        if tx.changes_one("keep_catalog", listed_ms=kept.listed_ms, **values):
            tx.announce(LISTS, kept.server)
        else:
            ConfirmCatalog(kept.server, kept.listed_ms).run(tx)


class ConfirmCatalog(Operation[None], frozen=True):
    """Update the age: the server has returned the same lists again."""

    server: str
    listed_ms: int

    def run(self, tx: Transaction) -> None:
        tx.run("confirm_catalog", server=self.server, listed_ms=self.listed_ms)


class AnnounceLists(Operation[None], frozen=True):
    """Notify the other gateways on this store that the server reported changes of these lists."""

    # An announcement of a gateway that was declared dead is not out of date.
    is_guarded: ClassVar[bool] = False

    server: str
    kinds: Collection[str]

    def run(self, tx: Transaction) -> None:
        for name in (self.server, *(list_hint(self.server, kind) for kind in self.kinds)):
            tx.announce(LISTS, name)


class ForgetCatalog(Operation[None], frozen=True):
    server: str

    def run(self, tx: Transaction) -> None:
        tx.run("forget_catalog", server=self.server)


class KeptCatalogs(Query[tuple[KeptCatalog, ...]], frozen=True):
    def run(self, reader: Reader) -> tuple[KeptCatalog, ...]:
        return tuple(KeptCatalog(*row) for row in reader.run("kept_catalogs"))
