"""Sessions and open questions as rows (`ports.replicas`). Only this adapter has them: SQLite has no second gateway.

A change of home is one statement that names the former home and looks at its lease, so of two gateways that adopt the same session
at once one finds the row changed. Opening and ending are announced, for gateways that remember which sessions exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taskgate.ports.replicas import QUESTIONS, SESSIONS, KeptQuestion, KeptSession
from taskgate.store.operations.transaction import Locks, Transaction
from taskgate.store.postgres.engine import PostgresEngine
from taskgate.store.postgres.statements import SQL
from taskgate.store.views.base import StoreView


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
        seen = self._postgres.presence.replicas
        return next((replica.internal for replica in seen if replica.owner == owner), "")

    async def open_session(self, session: KeptSession) -> None:
        def opened(tx: Transaction) -> None:
            values = {"id": session.id, "principal": session.principal, "scope": session.scope, "body": session.body}
            tx.run("open_session", home=tx.ownership.owner, now_ms=tx.now_ms, **values)
            tx.announce(SESSIONS, session.id)

        await self._write_or_fault(opened, _of(session.id))

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


def _of(session_id: str) -> Locks:
    return Locks(names=(f"session:{session_id}",))
