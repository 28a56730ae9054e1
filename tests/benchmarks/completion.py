"""How long completion takes: a hundred thousand candidates, and a thousand as in ordinary work.

Times are CPU time, which other work on the machine does not stretch. Run with `python
tests/benchmarks/completion.py`; ends non-zero if a limit is missed.
"""

from __future__ import annotations

import random
import sys
import time

from taskgate.core.completion.memory import Usage
from taskgate.core.completion.ranking import CandidateIndex, complete

SYLLABLES = ["ba", "ce", "di", "fo", "gu", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "zo"]


def values(count: int, rng: random.Random) -> list[str]:
    return ["/".join("".join(rng.choices(SYLLABLES, k=3)) for _ in range(3)) + str(i) for i in range(count)]


def typed_like(value: str, rng: random.Random) -> str:
    """What people type: nothing, a beginning, something inside, a beginning with a slip."""
    kind = rng.randrange(4)
    if kind == 0:
        return value[: rng.randrange(3)]
    if kind == 1:
        return value[: rng.randint(3, 12)]
    if kind == 2:
        return value[rng.randint(2, 8) : rng.randint(9, 16)]
    at = rng.randint(1, 5)
    return value[:at] + value[at + 1] + value[at] + value[at + 2 : at + 6]


def measure(count: int, asks: int) -> tuple[float, float, float]:
    rng = random.Random(count)
    candidates = values(count, rng)
    start = time.process_time()
    index = CandidateIndex.build(candidates)
    built = (time.process_time() - start) * 1000
    used = {value: Usage(rng.randint(1, 9), 0.0) for value in rng.sample(candidates, 100)}
    took = []
    for _ in range(asks):
        typed = typed_like(rng.choice(candidates), rng)
        start = time.process_time()
        complete(index, typed, used, now=1.0)
        took.append((time.process_time() - start) * 1000)
    took.sort()
    return built, took[len(took) // 2], took[int(len(took) * 0.99)]


def main() -> int:
    built, median, p99 = measure(100_000, 300)
    print(f"100,000 candidates: index {built:.0f} ms once, then median {median:.2f} ms, p99 {p99:.1f} ms (limit 100)")
    _, typical, typical_p99 = measure(1_000, 1000)
    print(f"1,000 candidates: median {typical:.2f} ms (limit 5), p99 {typical_p99:.2f} ms")
    return 0 if p99 <= 100 and typical <= 5 else 1


if __name__ == "__main__":
    sys.exit(main())
