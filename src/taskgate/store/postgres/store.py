"""The PostgreSQL store: implements `ports.store.Store` over one database that several gateways share."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import psycopg

from taskgate.core.audit.chain import GENESIS
from taskgate.ports.replicas import Replica
from taskgate.ports.store_answers import Ownership
from taskgate.ports.topics import SeenRevisions
from taskgate.store.open_store import OpenStore
from taskgate.store.operations.restored import RESTORED
from taskgate.store.postgres.committer import Committer
from taskgate.store.postgres.connection import Connection, connect, reason, refused, shown_url
from taskgate.store.postgres.engine import PostgresEngine
from taskgate.store.postgres.history_days import maintain_days
from taskgate.store.postgres.inspection import check, check_rights, inspect, migrate
from taskgate.store.postgres.presence import LEASE_MS, Presence
from taskgate.store.postgres.readers import Readers
from taskgate.store.postgres.statements import SQL
from taskgate.store.postgres.wakeups import Wakeups
from taskgate.store.sealing import KEY_RECORD, Sealing, key_needed, within_json
from taskgate.store.state import RestoreState, StoreState

RESTORE_WITHIN_MS: Final = 10_000
"""How long a starting gateway waits for another one that handles a restored database."""
_RESTORE_LOCK: Final = 7_236_410_386


class PostgresStore(OpenStore):
    """The store of one gateway, from `open_store` until `close`."""

    def __init__(self, engine: PostgresEngine) -> None:
        super().__init__(engine)
        self.engine = engine

    @property
    def lost(self) -> None:
        """None: a database that is unavailable may recover."""
        return None

    @property
    def problem(self) -> str | None:
        return self.engine.problem

    @property
    def is_committing(self) -> bool:
        return self.engine.writer.is_committing

    @property
    def wakeups(self) -> Wakeups:
        return self.engine.wakeups

    @property
    def lease_ms(self) -> int:
        return LEASE_MS

    def reconfigured(self, digest: str, interpreter: str) -> None:
        self.engine.presence.reconfigured(digest, interpreter)

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The gateways on this store, as read at the last renewal of the lease."""
        return self.engine.presence.replicas

    @property
    def revisions(self) -> SeenRevisions:
        return self.engine.presence.revisions

    @property
    def shared(self) -> PostgresStore:
        return self

    @property
    def is_fresh(self) -> bool:
        return self.engine.presence.is_fresh

    @property
    def unbroken_since(self) -> float:
        return self.engine.presence.gapless_since

    @property
    def may_declare_dead(self) -> bool:
        return self.engine.presence.may_declare_dead

    def is_alive(self, owner: str) -> bool:
        return self.engine.presence.is_alive(owner)

    def address_of(self, owner: str) -> str:
        return next((replica.internal for replica in self.replicas if replica.owner == owner), "")

    async def drop_old_days(self, keep_ms: int) -> None:
        now = self.now_ms()
        await self.engine.readers.on_connection(lambda connection: maintain_days(connection, now, keep_ms))

    @property
    def audit_chain(self) -> str:
        return self.ownership.owner

    def audit_head(self) -> tuple[int, str]:
        return self.engine.committer.audit_head or (0, GENESIS)

    async def close(self) -> None:
        """Write what is queued, then release the lease."""
        await self.engine.close()


def new_owner() -> str:
    """Return a new name for one start of a gateway."""
    return f"gw_{secrets.token_hex(8)}"


def open_store(
    url: str,
    *,
    owner: str | None = None,
    replaces: str = "",
    address: str = "",
    version: str = "",
    configuration: str = "",
    internal: str = "",
    interpreter: str = "",
    clock: Callable[[], int] | None = None,
    keys: Sequence[str] = (),
) -> PostgresStore:
    """Open the store and migrate its schema. Blocks; call it on the event loop's thread before serving.

    Raises GatewayFault. `replaces`: a gateway that has ended, whose lease need not expire first. `clock` replaces the clock of the
    database, for tests. `keys` encrypt what is written (`store.sealing`); a store that needs a key is not opened without it.
    """
    name, sealing = owner or new_owner(), Sealing(keys)
    try:
        with connect(url, "taskgate start") as connection:
            found = inspect(connection, url)
            check(found)
            check_rights(found)
            _check_keys(connection, sealing, url)
            migrate(connection)
            restoring = _restoring(connection, url)
            if sealing.used is not None:
                connection.execute(SQL["keep"], {"name": sealing.used, "value": b""})
            now = clock() if clock is not None else _database_now(connection)
            row = connection.execute(SQL["take_fence"], {"owner": name, "now_ms": now}).fetchone()
            assert row is not None
            ownership = Ownership(name, row[0])
            connection.execute(SQL["end_lease"], {"owner": replaces})
            wakeups = Wakeups()
            about = (address, version, configuration, internal, interpreter)
            presence = Presence(url, ownership, about, wakeups.announce, clock)
            presence.begin(connection)
            head = connection.execute(SQL["last_audit"], {"chain": name}).fetchone()
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error
    state = StoreState(RestoreState(restoring is not None, restoring.close if restoring is not None else None))
    committer = Committer(url, state, presence, clock, sealing, audit_head=head)
    engine = PostgresEngine(
        state=state,
        committer=committer,
        readers=Readers(url, state, name, presence.share, sealing),
        presence=presence,
        wakeups=wakeups,
        sealing=sealing,
    )
    engine.writer.start()
    return PostgresStore(engine)


def _restoring(connection: Connection, url: str) -> Connection | None:
    """Return a connection whose lock keeps other gateways from starting until the restored database has been handled; None if the
    database is not restored.

    Raises GatewayFault while another gateway handles it. Leases in such a database belong to gateways from before the backup, or
    to a start that crashed: they end here, so that all their tasks are claimed before any of them continues.
    """
    if connection.execute(SQL["kept"], {"name": RESTORED}).fetchone() is None:
        return None
    holding = connect(url, "taskgate restore", statement_ms=RESTORE_WITHIN_MS)
    try:
        holding.execute("SELECT pg_advisory_lock(%s)", [_RESTORE_LOCK])
    except psycopg.OperationalError:
        holding.close()
        raise refused(
            "another gateway is handling the restored database. Start this one when that one is ready."
        ) from None
    if connection.execute(SQL["kept"], {"name": RESTORED}).fetchone() is None:
        holding.close()
        return None
    connection.execute(SQL["end_leases"])
    return holding


def _check_keys(connection: Connection, sealing: Sealing, url: str) -> None:
    """Raises GatewayFault if rows need a key that is not configured. Changes nothing."""
    row = connection.execute("SELECT to_regclass('keepsakes') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return
    kept = connection.execute("SELECT name FROM keepsakes WHERE starts_with(name, %s)", [KEY_RECORD]).fetchall()
    for prefix in sealing.missing(name for (name,) in kept):
        asked = {"prefix": prefix, "length": len(prefix), "within": within_json(prefix)}
        found = connection.execute(SQL["needs_key"], asked).fetchone()
        if (found is not None and found[0]) or _history_needs_key(connection, asked):
            raise key_needed(shown_url(url))


def _history_needs_key(connection: Connection, asked: Mapping[str, Any]) -> bool:
    """Older schemas have no history."""
    known = connection.execute("SELECT to_regclass('history_content') IS NOT NULL").fetchone()
    if known is None or not known[0]:
        return False
    found = connection.execute(SQL["history_needs_key"], asked).fetchone()
    return found is not None and bool(found[0])


def _database_now(connection: Connection) -> int:
    row = connection.execute(SQL["database_now"]).fetchone()
    assert row is not None
    now: int = row[0]
    return now
