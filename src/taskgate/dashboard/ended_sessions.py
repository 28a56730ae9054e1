"""Page sessions that were logged out before their time: a cookie is signed, so the only way to end one early is to remember it.

Kept in a file, because cookies outlive a restart. Bounded: an entry goes when its cookie would have ended by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

MOST: Final = 10_000
FILE: Final = "ended-sessions"


class EndedSessions:
    def __init__(self, path: Path, wall: Callable[[], float]) -> None:
        self._path = path
        self._wall = wall
        self._ended: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(path.read_text("ascii"))
            self._ended = {str(nonce): int(until) for nonce, until in known.items()}

    def end(self, nonce: str, until: int) -> None:
        """From now on this session is over. Raises OSError if that cannot be kept."""
        now = self._wall()
        living = [(known, end) for known, end in self._ended.items() if end > now]
        self._ended = dict([*living, (nonce, until)][-MOST:])
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        partial.write_text(json.dumps(self._ended), "ascii")
        partial.replace(self._path)

    def __contains__(self, nonce: str) -> bool:
        return nonce in self._ended
