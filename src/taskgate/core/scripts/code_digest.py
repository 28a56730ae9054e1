"""The digest by which a script is recognized."""

from __future__ import annotations

import hashlib


def code_digest(code: str) -> str:
    """Return the digest of a source. Any change of it, also of a comment, is another script."""
    return f"sha256:{hashlib.sha256(code.encode()).hexdigest()}"


def script_digest(code: str, inputs: str) -> str:
    """Return the digest of a source with its inputs, as grants for one script are bound to it: other inputs are another script.

    `inputs` is their digest, empty without inputs: then the digest is that of the source. No source contains the null character.
    """
    return code_digest(f"{code}\0{inputs}" if inputs else code)
