"""The questions of one round of a call, and the answers so far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from taskgate.core.questions.question import Answer, Question

Spawn = Callable[[Coroutine[Any, Any, None]], None]


class QuestionRound:
    """The questions of a stateless server in one round of a call, and the answers so far."""

    __slots__ = ("answers", "questions", "sent", "spawn", "state", "store", "storing")

    def __init__(self, state: bytes, questions: Mapping[str, Question]) -> None:
        self.state = state
        self.questions = questions
        self.answers: dict[str, Answer] = {}
        self.sent = False
        """Whether the answers were sent to the server."""
        self.store: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.spawn: Spawn | None = None
        self.storing = asyncio.Lock()

    def store_answers_by(self, store: Callable[[], Coroutine[Any, Any, None]], spawn: Spawn) -> None:
        """Store every further answer with the task that the call became."""
        self.store, self.spawn = store, spawn

    def note_answer(self, key: str, answer: Answer) -> None:
        if key in self.questions and key not in self.answers:
            self.answers[key] = answer
            if self.store is not None and self.spawn is not None:
                self.spawn(self.store())

    def mark_sent(self) -> None:
        self.sent = True
