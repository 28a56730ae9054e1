"""Detect values that look like secrets. In doubt, a value counts as a secret.

Used before a value is remembered as a suggestion, and to find secrets among configured values. A false positive costs a
suggestion; a false negative would expose a key.
"""

from __future__ import annotations

import re

_SECRET_NAME = re.compile(
    r"pass(?!ive|age|enger)|pwd|secret|token|credential|auth|api_?key|access_?key|private|signature|cookie|session|bearer|"
    r"\bpin\b|\botp\b|\bcvv\b|\bcvc\b|\bssn\b|\biban\b|card_?n|account_?n|\bkey\b",
    re.IGNORECASE,
)
_SECRET_SHAPE = re.compile(
    r"^(sk|pk|rk)[-_]\w{8,}|^gh[pousr]_\w{10,}|^github_pat_|^glpat-|^xox[abeprs]-|^AKIA[0-9A-Z]{12,}|^AIza[\w-]{20,}|^ya29\.|"
    r"^eyJ[\w-]{8,}\.|^(Bearer|Basic|Token)\s|-----BEGIN|://[^/\s]*:[^/\s]*@|[?&](token|key|sig|signature|password|secret)=",
    re.IGNORECASE,
)
_WORDS = re.compile(r"[_\-\s]+|(?<=[a-z])(?=[A-Z])")
_DIGITS = re.compile(r"[\d\s-]{12,}")
_HEXADECIMAL = re.compile(r"[0-9a-fA-F-]+")
_CASE_TURN = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[a-z])")
_DENSE = re.compile(r"[A-Za-z0-9+/=_-]{20,}")


def looks_secret(argument: str, value: str) -> bool:
    """Whether a value, or the name of its argument, looks like that of a secret."""
    return (
        _SECRET_NAME.search(_WORDS.sub(" ", argument)) is not None
        or _SECRET_NAME.search(argument) is not None
        or _SECRET_SHAPE.search(value) is not None
        or _looks_random(value)
        or _looks_like_a_card(value)
    )


def _looks_random(value: str) -> bool:
    """Long runs without spaces that mix letters and digits, or upper and lower case, as no word does."""
    for run in _DENSE.findall(value):
        if len(run) >= 32 and _HEXADECIMAL.fullmatch(run):
            return True
        parts = re.split(r"[-_/+=]", run)
        mixed = sum(len(part) for part in parts if not part.isdigit() and not part.isalpha())
        turns = len(_CASE_TURN.findall(run))
        if mixed >= 12 or turns * 3 > len(run):
            return True
    return False


def _looks_like_a_card(value: str) -> bool:
    for found in _DIGITS.findall(value):
        digits = [int(c) for c in found if c.isdigit()]
        if 13 <= len(digits) <= 19:
            doubled = [d if i % 2 == 0 else (d * 2 - 9 if d > 4 else d * 2) for i, d in enumerate(reversed(digits))]
            if sum(doubled) % 10 == 0:
                return True
    return False
