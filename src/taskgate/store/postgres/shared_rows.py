"""What gateways share through a PostgreSQL store beyond tasks: accounts, secrets, sessions, questions, audit chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from taskgate import clock
from taskgate.core.audit.chain import Head, Row, beginning
from taskgate.core.identity.identity import tenant_of
from taskgate.ports.replicas import (
    QUESTIONS,
    SESSIONS,
    TOKENS,
    KeptQuestion,
    KeptSession,
    SessionLimits,
    TooManySessions,
)
from taskgate.ports.store import AuditTime
from taskgate.store.batch import Locks, Transaction
from taskgate.store.operations import rows
from taskgate.store.operations.rows import record_audit
from taskgate.store.postgres.connection import SQL, Connection, connect, migrate, reason, refused, shown_url
from taskgate.store.postgres.engine import PostgresEngine
from taskgate.store.sealing import Sealing
from taskgate.store.views.base import LogView, StoreView

# Accounts at servers as rows that all gateways of a store share. What they hold is encrypted by whoever uses them.
#
# Asked a few times an hour (a login, a token that ends), so each question has a connection of its own. Every method
# blocks and raises GatewayFault where the database cannot be reached.


class PostgresRows:
    """Implements the port `AccountRows`."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, key: str) -> bytes | None:
        return self._value("account", {"name": key})

    def put(self, key: str, value: bytes, expires_at: float | None = None) -> None:
        with self._connected() as connection:
            connection.execute(SQL["drop_old_accounts"])
            # What ends is ended by the database's clock: the machines' may be hours apart.
            seconds = None if expires_at is None else expires_at - clock.wall()
            connection.execute(SQL["keep_account"], {"name": key, "value": value, "seconds": seconds})

    def replace(self, key: str, value: bytes) -> bool:
        with self._connected() as connection:
            return connection.execute(SQL["replace_account"], {"name": key, "value": value}).fetchone() is not None

    def take(self, key: str) -> bytes | None:
        return self._value("take_account", {"name": key})

    def remove(self, key: str) -> bool:
        """The others see the new revision with the next renewal of their leases, and before they send a durable call."""
        with self._connected() as connection, connection.transaction():
            gone = connection.execute(SQL["take_account"], {"name": key}).fetchone() is not None
            if gone:
                connection.execute(SQL["bump_revisions"], {"topics": [TOKENS]})
            return gone

    def listed(self, prefix: str) -> dict[str, bytes]:
        with self._connected() as connection:
            found = connection.cursor(binary=True).execute(SQL["accounts"], {"prefix": prefix})
            return {name: bytes(value) for name, value in found.fetchall()}

    def claim(self, key: str, owner: str, seconds: float) -> bool:
        with self._connected() as connection:
            given = {"name": key, "owner": owner, "seconds": seconds}
            return connection.execute(SQL["claim_account"], given).fetchone() is not None

    def release(self, key: str, owner: str) -> None:
        with self._connected() as connection:
            connection.execute(SQL["release_account"], {"name": key, "owner": owner})

    def _value(self, statement: str, given: dict[str, Any]) -> bytes | None:
        with self._connected() as connection:
            row = connection.cursor(binary=True).execute(SQL[statement], given).fetchone()
            return bytes(row[0]) if row is not None else None

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        try:
            with connect(self._url, "taskgate accounts") as connection:
                yield connection
        except psycopg.Error as error:
            raise refused(f"{shown_url(self._url)}: {reason(error)}.") from error


# Secrets that all gateways of a store share: whoever comes first gives the value, and everybody gets that one. What people
# set, and set anew, is what was set last.
#
# Where `store.key` is given they are encrypted like what the store keeps, also those that stood there plainly or under
# an older key.


def known(url: str, name: str, sealing: Sealing) -> bytes | None:
    """A secret as the gateways of this store have it; None if none has started yet. Raises GatewayFault."""
    try:
        with connect(url, "taskgate check") as connection:
            row = connection.cursor(binary=True).execute(SQL["kept"], {"name": name}).fetchone()
            return None if row is None else sealing.open(bytes(row[0]), name)
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error


def shared(
    url: str, ours: Mapping[str, bytes], sealing: Sealing, newer: Callable[[bytes, bytes], bool] | None = None
) -> dict[str, bytes]:
    """`newer`: whether our value takes the place of the one that is there. Raises GatewayFault. Blocks; called before serving."""
    try:
        with connect(url, "taskgate start") as connection:
            migrate(connection)
            found: dict[str, bytes] = {}
            for name, value in ours.items():
                connection.execute(SQL["keep"], {"name": name, "value": sealing.seal(value, name)})
                row = connection.cursor(binary=True).execute(SQL["kept"], {"name": name}).fetchone()
                assert row is not None
                kept = bytes(row[0])
                before = sealing.open(kept, name)
                found[name] = value if newer is not None and newer(value, before) else before
                if found[name] != before or not sealing.is_current(kept):
                    sealed = sealing.seal(found[name], name)
                    connection.execute(SQL["keep_instead"], {"name": name, "value": sealed, "before": kept})
            return found
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error


# Sessions and open questions as rows (`ports.replicas`). Only this adapter has them: SQLite has no second gateway.
#
# A change of home is one statement that names the former home and looks at its lease, so of two gateways that adopt the
# same session at once one finds the row changed. Opening and ending are announced, for gateways that remember which
# sessions exist.


_HELD_WITHIN_MS: Final = 120_000
"""A session counts for limits while a gateway has said within this time that it holds it."""


class _HeldRows(StoreView):
    def __init__(self, engine: PostgresEngine) -> None:
        super().__init__(engine)
        self._postgres = engine

    @property
    def owner(self) -> str:
        return self.ownership.owner

    def is_alive(self, owner: str) -> bool:
        return self._postgres.presence.is_alive(owner)

    async def _rows(self, name: str, **values: str) -> list[tuple[Any, ...]]:
        return await self._postgres.readers.on_connection(
            lambda connection: connection.cursor(binary=True).execute(SQL[name], values).fetchall()
        )


class SessionRows(_HeldRows):
    @property
    def is_fresh(self) -> bool:
        return self._postgres.presence.is_fresh

    @property
    def unbroken_since(self) -> float:
        return self._postgres.presence.gapless_since

    def address_of(self, owner: str) -> str:
        for replica in self._postgres.presence.replicas:
            if replica.owner == owner:
                return replica.internal
        return ""

    async def open_session(self, session: KeptSession, limits: SessionLimits) -> TooManySessions | None:
        tenant = tenant_of(session.principal)

        def opened(tx: Transaction) -> TooManySessions | None:
            if full := _too_many(tx, tenant, limits):
                return full
            values = {"id": session.id, "principal": session.principal, "scope": session.scope, "body": session.body}
            values |= {"tenant": tenant, "limited_as": limits.limited_as, "home": tx.ownership.owner}
            tx.run("open_session", now_ms=tx.now_ms, **values)
            tx.announce(SESSIONS, session.id)
            return None

        # Whoever opens one for the same caller or tenant at another gateway waits for our commit, and counts ours.
        counted = (f"sessions of {limits.limited_as}", *((f"sessions of tenant {tenant}",) if tenant else ()))
        return await self._write_or_fault(opened, Locks(names=(*_of(session.id).names, *counted)))

    async def begin_conversation(self, session: KeptSession) -> None:
        def began(tx: Transaction) -> None:
            values = {"id": session.id, "principal": session.principal, "scope": session.scope}
            tx.run("begin_conversation", home=tx.ownership.owner, now_ms=tx.now_ms, **values)
            tx.announce(SESSIONS, session.id)

        await self._write_or_fault(began, _of(session.id))

    async def find_session(self, session_id: str) -> KeptSession | None:
        rows = await self._rows("find_session", id=session_id)
        return KeptSession(*rows[0]) if rows else None

    async def adopt_session(self, session_id: str, former: str) -> KeptSession | None:
        def adopted(tx: Transaction) -> KeptSession | None:
            values = {"id": session_id, "former": former, "home": tx.ownership.owner, "now_ms": tx.now_ms}
            row = tx.run("adopt_session", **values).fetchone()
            return KeptSession(*row) if row is not None else None

        return await self._write_or_fault(adopted, _of(session_id))

    async def change_session(self, session_id: str, body: bytes) -> bool:
        def changed(tx: Transaction) -> bool:
            values = {"id": session_id, "home": tx.ownership.owner, "now_ms": tx.now_ms}
            return tx.run("change_session", body=body, **values).rowcount == 1

        return await self._write_or_fault(changed, _of(session_id))

    async def end_session(self, session_id: str) -> None:
        def ended(tx: Transaction) -> None:
            tx.run("end_session", id=session_id, home=tx.ownership.owner)
            tx.announce(SESSIONS, session_id)

        await self._write_or_fault(ended, _of(session_id))

    async def release_session(self, session_id: str) -> None:
        def released(tx: Transaction) -> None:
            tx.run("release_session", id=session_id, home=tx.ownership.owner, now_ms=tx.now_ms)
            tx.announce(SESSIONS, session_id)

        await self._write_or_fault(released, _of(session_id))

    async def release_sessions(self) -> None:
        def released(tx: Transaction) -> None:
            tx.run("release_sessions", home=tx.ownership.owner, now_ms=tx.now_ms)
            tx.announce(SESSIONS, tx.ownership.owner)

        await self._write_or_fault(released)

    async def sessions_elsewhere(self) -> frozenset[str]:
        return frozenset(row[0] for row in await self._rows("sessions_elsewhere", home=self.ownership.owner))

    async def own_sessions(self) -> frozenset[str]:
        return frozenset(row[0] for row in await self._rows("sessions_of_home", home=self.ownership.owner))

    async def sessions_seen(self, forget_before_ms: int) -> None:
        def seen(tx: Transaction) -> None:
            tx.run("sessions_seen", home=tx.ownership.owner, now_ms=tx.now_ms)
            tx.run("forget_sessions", before_ms=forget_before_ms)

        await self._write_or_fault(seen)


class QuestionRows(_HeldRows):
    """What is asked and answered is encrypted where `store.key` is given, like the questions of tasks."""

    async def put_questions(self, questions: Sequence[KeptQuestion]) -> None:
        def put(tx: Transaction) -> None:
            for question in questions:
                values = {"id": question.id, "caller": question.caller, "expires_ms": question.expires_ms}
                tx.run(
                    "put_open_question",
                    home=tx.ownership.owner,
                    body=tx.sealing.seal(question.body, question.id),
                    **values,
                )
                tx.announce(QUESTIONS, question.id)

        await self._write_or_fault(put, _question(*(question.id for question in questions)))

    async def end_questions(self, ids: Sequence[str], outcome: str) -> None:
        def ended(tx: Transaction) -> None:
            for question_id in ids:
                tx.run("settle_open_question", id=question_id, home=tx.ownership.owner, outcome=outcome)
                tx.run("withdraw_open_question", id=question_id, home=tx.ownership.owner)
                tx.announce(QUESTIONS, question_id)

        await self._write_or_fault(ended, _question(*ids))

    async def answer_question(self, question_id: str, answer: bytes) -> bool:
        def answered(tx: Transaction) -> bool:
            sealed = tx.sealing.seal(answer, question_id)
            found = tx.run("answer_open_question", id=question_id, answer=sealed).fetchone()
            tx.announce(QUESTIONS, question_id)
            return found is not None

        return await self._write_or_fault(answered, _question(question_id))

    async def find_question(self, question_id: str) -> KeptQuestion | None:
        rows = await self._rows("find_open_question", id=question_id)
        return self._kept(rows[0]) if rows else None

    async def questions_elsewhere(self) -> list[KeptQuestion]:
        rows = await self._rows("open_questions_elsewhere", home=self.owner)
        return [self._kept(row) for row in rows if self.is_alive(row[2])]

    async def questions_answered(self) -> list[KeptQuestion]:
        return [self._kept(row) for row in await self._rows("open_questions_answered", home=self.owner)]

    async def forget_questions(self, before_ms: int) -> None:
        def forgotten(tx: Transaction) -> None:
            tx.run("forget_open_questions", before_ms=before_ms)

        await self._write_or_fault(forgotten)

    def _kept(self, row: tuple[Any, ...]) -> KeptQuestion:
        question_id, caller, home, expires_ms, body, answer, outcome = row
        sealing = self._engine.sealing
        given = sealing.open(bytes(answer), question_id) if answer is not None else None
        return KeptQuestion(
            question_id, caller, home, expires_ms, sealing.open(bytes(body), question_id), given, outcome
        )


def _question(*ids: str) -> Locks:
    return Locks(names=tuple(f"question:{question_id}" for question_id in ids))


def _too_many(tx: Transaction, tenant: str, limits: SessionLimits) -> TooManySessions | None:
    since_ms = tx.now_ms - _HELD_WITHIN_MS
    values = {"limited_as": limits.limited_as, "since_ms": since_ms, "most": limits.of_caller}
    if tx.run("sessions_of_caller", **values).fetchone()[0] >= limits.of_caller:
        return TooManySessions.OF_CALLER
    if not tenant or limits.of_tenant is None:
        return None
    found = tx.run("sessions_of_tenant", tenant=tenant, since_ms=since_ms, most=limits.of_tenant).fetchone()[0]
    return TooManySessions.OF_TENANT if found >= limits.of_tenant else None


def _of(session_id: str) -> Locks:
    return Locks(names=(f"session:{session_id}",))


# The audit log where several gateways write it: one chain for each gateway and start, so that nobody waits for the end
# of somebody else's. The first row of each chain names the ends of the others, so that none can be cut or lost unseen.

_PAGE: Final = 2_000


class ChainView(LogView):
    @property
    def audit_chain(self) -> str:
        return self.ownership.owner

    async def begin_chain(self) -> None:
        """Starts are one after the other, so that no end is left unnamed by two that look at once."""

        def write(tx: Transaction) -> None:
            tx.run("put_chain", now_ms=tx.now_ms)
            heads = [Head(*row) for row in tx.run("unnamed_heads").fetchall()]
            record_audit(tx, beginning(self.audit_chain, heads))
            for head in heads:
                tx.run("head_named", other=head.chain_id, number=head.number)

        await self._write_or_fault(write, Locks(names=("audit chains",)))

    async def ended_chains(self) -> tuple[str, ...]:
        return await self._read(lambda reader: tuple(row[0] for row in reader.rows_of("ended_chains")))

    async def audit_rows(self, after: int = 0, limit: int = 1_000, *, chain: str = "") -> tuple[Row, ...]:
        of = chain or self.audit_chain
        found = await self._read(lambda reader: reader.rows_of("audit_of", of=of, number=after, limit=limit))
        return tuple(rows.audit_from(*row) for row in found)

    async def audit_times(self, after: int = 0, limit: int = 1_000, *, chain: str = "") -> tuple[AuditTime, ...]:
        of = chain or self.audit_chain
        found = await self._read(lambda reader: reader.rows_of("audit_of", of=of, number=after, limit=limit))
        return tuple(rows.audit_time(*row) for row in found)

    async def forget_audit(self, up_to: int, *, chain: str = "", mark: bytes = b"") -> None:
        of = chain or self.audit_chain

        def write(tx: Transaction) -> None:
            tx.run("cut_chain", of=of, cut=mark)
            tx.run("forget_audit_of", of=of, number=up_to)

        await self._write_or_fault(write, Locks(names=("audit chains",)))


def read_chains(url: str) -> Iterator[tuple[str, bytes | None, Iterator[Row]]]:
    """Each chain with its signed cut and its rows, all as of one moment, also while gateways write. Raises GatewayFault."""
    try:
        with connect(url, "taskgate audit") as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            for chain, cut in connection.cursor(binary=True).execute(SQL["audit_chains"]).fetchall():
                yield chain, cut, _rows_of(connection, chain)
    except psycopg.Error as error:
        raise refused(f"{shown_url(url)}: {reason(error)}.") from error


def _rows_of(connection: Connection, chain: str) -> Iterator[Row]:
    last = 0
    while True:
        values = {"of": chain, "number": last, "limit": _PAGE}
        found = connection.cursor(binary=True).execute(SQL["audit_of"], values).fetchall()
        for row in found:
            read = rows.audit_from(*row)
            last = read.number
            yield read
        if not found:
            return
