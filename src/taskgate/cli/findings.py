"""One result of a check of `taskgate doctor`."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One result: `verdict` is ok, note or bad; `fix` is the next step if it is not ok."""

    verdict: str
    about: str
    detail: str
    fix: str = ""
