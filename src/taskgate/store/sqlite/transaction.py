"""A transaction on the writing connection; made by the writer, one per group commit."""

from __future__ import annotations

import sqlite3
from typing import Any

from taskgate.ports.store_answers import Ownership
from taskgate.store.operations.kept_events import KeptEvents
from taskgate.store.operations.transaction import Transaction
from taskgate.store.sqlite.statements import SQL


class SqliteTransaction(Transaction):
    __slots__ = ("_connection",)
    is_shared = False

    def __init__(
        self, connection: sqlite3.Connection, now_ms: int, ownership: Ownership, kept_events: KeptEvents
    ) -> None:
        super().__init__(now_ms, ownership, kept_events)
        self._connection = connection

    def run(self, name: str, /, **values: Any) -> sqlite3.Cursor:
        return self._connection.execute(SQL[name], values)

    def announce(self, topic: str, name: str) -> None:
        """Nobody else has this store open, and this process hears of its own changes by itself."""
