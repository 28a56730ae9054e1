"""One result of a check of `taskgate doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `fix` says what to do when it is not in order."""

    verdict: str
    about: str
    said: str
    fix: str = ""
