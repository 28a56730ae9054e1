"""Durations such as `7d` in query parameters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    pass


DAYS: Final = 7
_UNITS: Final = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SINCE: Final = re.compile(r"(\d{1,4})([mhd])", re.ASCII)


def since_ms(text: str | None, now_ms: int) -> int:
    """`7d`, `12h` or `30m` before now."""
    found = _SINCE.fullmatch(text or f"{DAYS}d")
    if found is None:
        raise ValueError("since must be a duration such as 7d, 12h or 30m")
    return now_ms - int(found[1]) * _UNITS[found[2]]
