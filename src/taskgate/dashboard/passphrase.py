"""The operator's passphrase, which approving may require in addition to the token. Wrong guesses are limited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from taskgate.access.attempts import FailedAttempts, TooManyAttempts
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.caller import OPERATOR

Fits = Callable[[str], bool]
TRIES: Final = 5
TRIES_S: Final = 60.0


class Passphrase:
    """A passphrase that the operator may set, needed in addition to the operator's token. Wrong guesses are limited."""

    def __init__(self, fits: Fits | None) -> None:
        self._fits = fits
        self._attempts = FailedAttempts(TRIES, TRIES_S)

    @property
    def is_set(self) -> bool:
        return self._fits is not None

    def needed_by(self, user: Approver) -> bool:
        return self.is_set and user.id == OPERATOR

    async def fits(self, given: str) -> bool:
        if self._fits is None:
            return True
        try:
            begun = await self._attempts.begin(OPERATOR)
        except TooManyAttempts:
            return False
        with begun as attempt:
            # Key stretching takes tens of milliseconds by design.
            fits = await asyncio.to_thread(self._fits, given[:1024])
            if fits:
                attempt.passed()
            return fits
