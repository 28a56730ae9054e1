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
    """A style sheet or script of ours, read once."""
    return (HERE / "static" / name).read_bytes() if name in STATIC else None


@cache
def asset_address(name: str) -> str:
    """Its address, which changes with its contents: a browser keeps it for good, and a page knows when it is outdated."""
    return f"/static/{name}?v={hashlib.sha256(asset(name) or b'').hexdigest()[:12]}"


@cache
def _small(name: str) -> bytes:
    return gzip.compress(asset(name) or b"", mtime=0)


def static_answer(name: str, accepted: bytes) -> Answer | None:
    """Small where the browser takes it so. Pages are never compressed: they hold the token of their forms beside words of an
    address, and from the length of both together somebody who listens could guess the token (BREACH)."""
    body = asset(name)
    if body is None:
        return None
    if b"gzip" not in accepted:
        return Answer(200, body, STATIC[name], _FOREVER)
    return Answer(200, _small(name), STATIC[name], (*_FOREVER, (b"content-encoding", b"gzip")))
