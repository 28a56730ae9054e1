"""One result of a check of `taskgate doctor`."""

from __future__ import annotations

from taskgate.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One result: `verdict` is ok, note or bad; `fix` is the next step if it is not ok."""

    verdict: str
    about: str
    detail: str
    fix: str = ""
