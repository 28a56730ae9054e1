"""The questions of one round of a call, and the answers so far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from taskgate.core.questions.question import Answer, Question

Spawn = Callable[[Coroutine[Any, Any, None]], None]


class AskedRound:
    """What a stateless server asked in one round of a call, and the answers that came so far."""

    __slots__ = ("answers", "asked", "keep", "keeping", "sent", "spawn", "state")

    def __init__(self, state: bytes, asked: Mapping[str, Question]) -> None:
        self.state = state
        self.asked = asked
        self.answers: dict[str, Answer] = {}
        self.sent = False
        """The answers are on their way to the server."""
        self.keep: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.spawn: Spawn | None = None
        self.keeping = asyncio.Lock()

    def follow(self, keep: Callable[[], Coroutine[Any, Any, None]], spawn: Spawn) -> None:
        """The call has become a task, which keeps every answer from here on."""
        self.keep, self.spawn = keep, spawn

    def answered(self, key: str, answer: Answer) -> None:
        if key in self.asked and key not in self.answers:
            self.answers[key] = answer
            if self.keep is not None and self.spawn is not None:
                self.spawn(self.keep())

    def goes_out(self) -> None:
        self.sent = True
