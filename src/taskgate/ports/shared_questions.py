"""Open questions that can be answered at every gateway of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

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


class QuestionStore(Protocol):
    """Questions that can be answered at every gateway. Every change is announced under the topic QUESTIONS."""

    @property
    def owner(self) -> str: ...

    def is_alive(self, owner: str) -> bool: ...

    def now_ms(self) -> int: ...

    async def put_questions(self, questions: Sequence[KeptQuestion]) -> None:
        """Store questions of this gateway, replacing those with the same ids unless a live gateway owns them."""
        ...

    async def end_questions(self, ids: Sequence[str], outcome: str) -> None:
        """End questions of this gateway. Answered ones keep the outcome for the gateway that answered; others are deleted."""
        ...

    async def answer_question(self, question_id: str, answer: bytes) -> bool:
        """Store an answer for its home. False if there is one already, or no such question."""
        ...

    async def find_question(self, question_id: str) -> KeptQuestion | None: ...

    async def questions_elsewhere(self) -> list[KeptQuestion]:
        """Return unanswered questions of other live gateways."""
        ...

    async def questions_answered(self) -> list[KeptQuestion]:
        """Return questions of this gateway that were answered elsewhere and are not settled yet."""
        ...

    async def forget_questions(self, before_ms: int) -> None:
        """Delete questions that expired before that time."""
        ...
