"""Slows whoever tries tokens: after many wrong ones from an address, unknown ones from there wait.

Credentials that are known already are not held up, so nobody can lock others out who work from the same address.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from taskgate import clock

MOST_FAILURES: Final = 60
WITHIN_S: Final = 60.0
MOST_ADDRESSES: Final = 10_000


class FailedCredentials:
    def __init__(self) -> None:
        self._counted: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """How many in the present minute of an address, and when that minute ends."""

    def count(self, address: str) -> None:
        failures, ends = self._counted.pop(address, (0, 0.0))
        now = clock.monotonic()
        self._counted[address] = (failures + 1, ends) if now < ends else (1, now + WITHIN_S)
        if len(self._counted) > MOST_ADDRESSES:
            self._counted.popitem(last=False)

    def wait_s(self, address: str) -> int:
        """How long this address has to wait, in whole seconds; 0 if it need not."""
        failures, ends = self._counted.get(address, (0, 0.0))
        left = ends - clock.monotonic()
        return max(1, round(left)) if failures >= MOST_FAILURES and left > 0 else 0
