"""The digest by which a script is recognized."""

from __future__ import annotations

import hashlib


def code_digest(code: str) -> str:
    """Return the digest of a source. Any change of it, also of a comment, is another script."""
    return f"sha256:{hashlib.sha256(code.encode()).hexdigest()}"
