"""References to results of calls, which a script passes on without loading them.

A reference names the task of the call, with a code that only the gateway can compute and that is valid in one script: neither a
server nor another script can make one that is resolved.
"""

from __future__ import annotations

import hmac
from typing import Final

REFERENCE_BYTES: Final = 16_384
"""A result that is passed on is handed over by reference if it has more bytes than this."""
_DOMAIN: Final = b"taskgate script result 1"
_MARK: Final = "taskgate-result:"


def result_reference(key: bytes, script: str, call: str) -> str:
    """Return the reference to the result of a call of this script."""
    return f"{_MARK}{call}:{_code(key, script, call)}"


def referenced_call(key: bytes, script: str, reference: str) -> str | None:
    """Return the call that a reference names; None unless it was made for this script."""
    call, _, code = reference.removeprefix(_MARK).rpartition(":")
    return call if hmac.compare_digest(code.encode(), _code(key, script, call).encode()) else None


def _code(key: bytes, script: str, call: str) -> str:
    parts = b"\0".join((_DOMAIN, script.encode(), call.encode()))
    return hmac.new(key, parts, digestmod="sha256").hexdigest()
