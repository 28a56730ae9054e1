"""One page on which a user answers a question, and the receiver of the answer."""

from __future__ import annotations

from typing import Protocol

import msgspec

from taskgate import clock


class AnswerReceiver(Protocol):
    """Receives the user's answer: a caller's session, or a server's conversation."""

    @property
    def gone(self) -> bool: ...

    def send(self, method: str, params: bytes) -> None: ...

    async def delivered(self) -> None:
        """Return when the receiver has the answer, as far as that can be known. Raises CallerError if it is too late."""
        ...


class ElicitationPage(msgspec.Struct, frozen=True, eq=False):
    id: str
    principal: str
    requester: str
    name: str
    description: str
    receiver: AnswerReceiver
    expires: float
    is_elsewhere: bool = False
    """Whether it waits at another gateway on the same store."""

    @property
    def seconds_left(self) -> int:
        return max(0, round(self.expires - clock.monotonic()))
