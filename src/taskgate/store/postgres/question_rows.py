"""Open questions of plain calls, as rows that all gateways of a store share (`ports.shared_questions`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taskgate.ports.shared_questions import KeptQuestion
from taskgate.ports.topics import QUESTIONS
from taskgate.store.locks import Locks
from taskgate.store.postgres.gateway_rows import GatewayRows
from taskgate.store.transaction import Transaction


class QuestionRows(GatewayRows):
    """Requests and answers are encrypted if `store.key` is set, like the questions of tasks."""

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

        await self._write_or_fault(put, _locks(*(question.id for question in questions)))

    async def end_questions(self, ids: Sequence[str], outcome: str) -> None:
        def ended(tx: Transaction) -> None:
            for question_id in ids:
                tx.run("settle_open_question", id=question_id, home=tx.ownership.owner, outcome=outcome)
                tx.run("withdraw_open_question", id=question_id, home=tx.ownership.owner)
                tx.announce(QUESTIONS, question_id)

        await self._write_or_fault(ended, _locks(*ids))

    async def answer_question(self, question_id: str, answer: bytes) -> bool:
        def answered(tx: Transaction) -> bool:
            sealed = tx.sealing.seal(answer, question_id)
            found = tx.run("answer_open_question", id=question_id, answer=sealed).fetchone()
            tx.announce(QUESTIONS, question_id)
            return found is not None

        return await self._write_or_fault(answered, _locks(question_id))

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


def _locks(*ids: str) -> Locks:
    return Locks(names=tuple(f"question:{question_id}" for question_id in ids))
