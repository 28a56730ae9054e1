"""Open questions of plain calls that can be answered at every gateway of a store. Every change is announced under the topic
QUESTIONS. Requests and answers are encrypted if `store.key` is set, like the questions of tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from taskgate.ports.topics import QUESTIONS
from taskgate.store.locks import Locks
from taskgate.store.operation import Operation, Query
from taskgate.store.reader import Reader
from taskgate.store.rows import record_from
from taskgate.store.transaction import Transaction

TAKEN: Final = "taken"
GONE: Final = "gone"


class KeptQuestion(msgspec.Struct, frozen=True):
    """A question that waits at `home`. `outcome`: TAKEN if its home has delivered the answer, GONE if the answer came too late."""

    id: str
    caller: str
    home: str
    expires_ms: int
    body: bytes
    answer: bytes | None = None
    outcome: str = ""


class PutQuestions(Operation[None], frozen=True):
    """Store questions of this gateway, replacing those with the same ids unless a live gateway owns them."""

    questions: Sequence[KeptQuestion]

    @property
    def locks(self) -> Locks:
        return _question_locks(*(question.id for question in self.questions))

    def run(self, tx: Transaction) -> None:
        for question in self.questions:
            values = {"id": question.id, "caller": question.caller, "expires_ms": question.expires_ms}
            body = tx.sealing.seal(question.body, question.id)
            tx.run("put_open_question", home=tx.ownership.owner, body=body, **values)
            tx.announce(QUESTIONS, question.id)


class EndQuestions(Operation[None], frozen=True):
    """End questions of this gateway. Answered ones keep the outcome for the gateway that answered; others are deleted."""

    ids: Sequence[str]
    outcome: str

    @property
    def locks(self) -> Locks:
        return _question_locks(*self.ids)

    def run(self, tx: Transaction) -> None:
        for question_id in self.ids:
            tx.run("settle_open_question", id=question_id, home=tx.ownership.owner, outcome=self.outcome)
            tx.run("withdraw_open_question", id=question_id, home=tx.ownership.owner)
            tx.announce(QUESTIONS, question_id)


class AnswerQuestion(Operation[bool], frozen=True):
    """Store an answer for its home. False if there is one already, or no such question."""

    question_id: str
    answer: bytes

    @property
    def locks(self) -> Locks:
        return _question_locks(self.question_id)

    def run(self, tx: Transaction) -> bool:
        sealed = tx.sealing.seal(self.answer, self.question_id)
        found = tx.run("answer_open_question", id=self.question_id, answer=sealed).fetchone()
        tx.announce(QUESTIONS, self.question_id)
        return found is not None


class FindQuestion(Query[KeptQuestion | None], frozen=True):
    question_id: str

    def run(self, reader: Reader) -> KeptQuestion | None:
        row = reader.run("find_open_question", id=self.question_id).fetchone()
        return None if row is None else _question_from(reader, *row)


class UnansweredElsewhere(Query[list[KeptQuestion]], frozen=True):
    """Unanswered questions of other gateways, alive or dead."""

    def run(self, reader: Reader) -> list[KeptQuestion]:
        found = reader.run("open_questions_elsewhere", home=reader.ownership.owner)
        return [_question_from(reader, *row) for row in found]


class QuestionsAnswered(Query[list[KeptQuestion]], frozen=True):
    """Questions of this gateway that were answered elsewhere and are not settled yet."""

    def run(self, reader: Reader) -> list[KeptQuestion]:
        found = reader.run("open_questions_answered", home=reader.ownership.owner)
        return [_question_from(reader, *row) for row in found]


class ForgetQuestions(Operation[None], frozen=True):
    """Delete questions that expired before that time."""

    before_ms: int

    def run(self, tx: Transaction) -> None:
        tx.run("forget_open_questions", before_ms=self.before_ms)


def _question_from(reader: Reader, *row: Any) -> KeptQuestion:
    kept = record_from(KeptQuestion, row)
    opened = reader.sealing.open
    answer = None if kept.answer is None else opened(bytes(kept.answer), kept.id)
    return msgspec.structs.replace(kept, body=opened(bytes(kept.body), kept.id), answer=answer)


def _question_locks(*ids: str) -> Locks:
    return Locks(names=tuple(f"question:{question_id}" for question_id in ids))
