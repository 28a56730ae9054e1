"""Seeded randomness: ids, keys and jitter from one generator, so that a run can be repeated."""

from __future__ import annotations

import base64
import random
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Keys, ids and jitter come from one generator. Its values are predictable, so tests can depend on them."""
    numbers = random.Random(seed)
    before = random.getstate()

    def token_bytes(count: int | None = None) -> bytes:
        return numbers.randbytes(32 if count is None else count)

    def token_hex(count: int | None = None) -> str:
        return token_bytes(count).hex()

    def token_urlsafe(count: int | None = None) -> str:
        return base64.urlsafe_b64encode(token_bytes(count)).rstrip(b"=").decode("ascii")

    with ExitStack() as stack:
        for made in (token_bytes, token_hex, token_urlsafe):
            stack.enter_context(patch.object(secrets, made.__name__, made))
        random.seed(seed)
        stack.callback(random.setstate, before)
        yield
