"""Style sheet and script of the console.

Their addresses contain a hash of their contents, so browsers cache them indefinitely.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from taskgate.dashboard.web import Answer

HERE: Final = Path(__file__).parent
STATIC: Final = {"style.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8"}
_FOREVER: Final = ((b"cache-control", b"public, max-age=31536000, immutable"), (b"vary", b"accept-encoding"))


@cache
def asset(name: str) -> bytes | None:
    """The contents of a style sheet or script, read once."""
    return (HERE / "static" / name).read_bytes() if name in STATIC else None


@cache
def asset_address(name: str) -> str:
    """The address with a hash of the contents: browsers cache it indefinitely, and an open page detects an upgrade."""
    return f"/static/{name}?v={hashlib.sha256(asset(name) or b'').hexdigest()[:12]}"


@cache
def _compressed(name: str) -> bytes:
    return gzip.compress(asset(name) or b"", mtime=0)


def static_answer(name: str, accepted: bytes) -> Answer | None:
    """Compressed if the browser accepts it. Pages are never compressed: they contain the form token next to text from the
    address, so an eavesdropper could guess the token from the length (BREACH)."""
    body = asset(name)
    if body is None:
        return None
    if b"gzip" not in accepted:
        return Answer(200, body, STATIC[name], _FOREVER)
    return Answer(200, _compressed(name), STATIC[name], (*_FOREVER, (b"content-encoding", b"gzip")))
