"""Arbitrary JSON at low cost: one number is drawn, and a tree is generated from it.

Such tests are slow if a whole tree is drawn value by value. Here Hypothesis draws a seed, so that an example takes little time and
a test can run hundreds of them. A failing example is shown as its seed, and is not made smaller.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**53 + 1, -(2**63), 2**70, 0.5, -0.0, 1e308, 5e-324),
    *("", " ", "0", "a", "é", "\x00", "\u2028", "\U0001d11e", "\ufeff", "x" * 300),
)
DEEPEST = 5


def any_json(words: Sequence[str], widest: int = 6) -> st.SearchStrategy[Any]:
    """Values whose keys, and many of whose strings, are words that the parser looks for."""
    return _seeds.map(lambda seed: _value(random.Random(seed), words, widest, 0))


def any_object(words: Sequence[str], widest: int = 8) -> st.SearchStrategy[dict[str, Any]]:
    return _seeds.map(lambda seed: _object(random.Random(seed), words, widest, 0))


_seeds = st.integers(0, 2**64 - 1)


def _value(chance: random.Random, words: Sequence[str], widest: int, depth: int) -> Any:
    kind = chance.random()
    if depth < DEEPEST and kind < 0.35:
        return _object(chance, words, max(widest - depth, 1), depth + 1)
    if depth < DEEPEST and kind < 0.5:
        return [_value(chance, words, widest, depth + 1) for _ in range(chance.randint(0, 4))]
    if kind < 0.75:
        return chance.choice(words)
    if kind < 0.8:
        return chance.randint(-(10**6), 10**6)
    return chance.choice(SCALARS)


def _object(chance: random.Random, words: Sequence[str], widest: int, depth: int) -> dict[str, Any]:
    keys = chance.sample(words, min(chance.randint(0, widest), len(words)))
    return {key: _value(chance, words, widest, depth) for key in keys}
