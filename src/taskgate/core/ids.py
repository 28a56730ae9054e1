"""Ids of tasks and of other records: a prefix and a ULID.

A ULID is 48 bits of milliseconds and 80 random bits in Crockford's base 32. The caller passes time and randomness,
because core has neither. The random part is never incremented: a task id must not be guessable from another one.
"""

from __future__ import annotations

from typing import Final

TASK_PREFIX: Final = "tg_"
RANDOM_BYTES: Final = 10

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Ten bits at a time: a ULID is created for every task and every event.
_PAIRS: Final = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
_LETTERS: Final = frozenset(_ALPHABET)
_BASE_32: Final = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
"""From Crockford's digits to those of `int`."""
_LENGTH: Final = 26
_FORTY_BITS: Final = (1 << 40) - 1
_MAX_MS: Final = (1 << 48) - 1


def ulid(now_ms: int, randomness: bytes) -> str:
    """Return 26 characters that sort by time."""
    if len(randomness) != RANDOM_BYTES:
        raise ValueError(f"a ULID needs {RANDOM_BYTES} random bytes, not {len(randomness)}")
    if not 0 <= now_ms <= _MAX_MS:
        raise ValueError(f"{now_ms} ms does not fit the 48 bits of a ULID")
    pairs, number = _PAIRS, int.from_bytes(randomness, "big")
    high, low = number >> 40, number & _FORTY_BITS
    return (
        f"{pairs[now_ms >> 40]}{pairs[now_ms >> 30 & 1023]}{pairs[now_ms >> 20 & 1023]}{pairs[now_ms >> 10 & 1023]}"
        f"{pairs[now_ms & 1023]}"
        f"{pairs[high >> 30]}{pairs[high >> 20 & 1023]}{pairs[high >> 10 & 1023]}{pairs[high & 1023]}"
        f"{pairs[low >> 30]}{pairs[low >> 20 & 1023]}{pairs[low >> 10 & 1023]}{pairs[low & 1023]}"
    )


def new_task_id(now_ms: int, randomness: bytes) -> str:
    return TASK_PREFIX + ulid(now_ms, randomness)


def is_task_id(text: str) -> bool:
    """Whether the text has the form of a task id. Such a task need not exist."""
    return creation_ms(text) is not None


def creation_ms(text: str) -> int | None:
    """Return the millisecond in which a task id was created, or None if the text is not a task id."""
    if not text.startswith(TASK_PREFIX):
        return None
    body = text[len(TASK_PREFIX) :]
    return _time_of(body)


def is_ulid(text: str) -> bool:
    return _time_of(text) is not None


def _time_of(body: str) -> int | None:
    # The first letter has only three bits: anything above 7 would exceed the 48 bits of time.
    if len(body) != _LENGTH or body[0] > "7" or not _LETTERS.issuperset(body):
        return None
    return int(body[:10].translate(_BASE_32), 32)
