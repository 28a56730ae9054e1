"""How long tool search takes on a catalog of ten thousand tools: building the index, and searching it.

Times are CPU time, which other work on the machine does not stretch. Run with `python
tests/benchmarks/tool_search.py`; ends non-zero if a limit is missed.
"""

from __future__ import annotations

import itertools
import random
import sys
import time

from taskgate.core.catalog.search import SearchDocument, SearchIndex

TOOLS = 10_000
VERBS = [
    "get",
    "list",
    "create",
    "update",
    "delete",
    "search",
    "export",
    "import",
    "send",
    "fetch",
    "merge",
    "open",
    "close",
    "archive",
    "restore",
    "count",
]
NOUNS = [
    f"{a}{b}"
    for a in ["in", "or", "cu", "pro", "ac", "re", "ten", "fol", "mes", "rep"]
    for b in ["voice", "der", "tomer", "ject", "count", "lease", "ant"]
]

SYLLABLES = ["ba", "ce", "di", "fo", "gu", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "zo"]
WORDS = ["".join(parts) for parts in itertools.product(SYLLABLES, SYLLABLES, SYLLABLES, ("", "n"))]


def catalog(seed: int) -> list[SearchDocument]:
    rng = random.Random(seed)
    words = VERBS + NOUNS + WORDS
    return [
        SearchDocument(
            f"server{i % 50}__{(name := f'{rng.choice(VERBS)}_{rng.choice(NOUNS)}_{i}')}",
            name,
            name.replace("_", " ").title(),
            " ".join(rng.choices(words, k=25)),
            tuple(rng.choices(NOUNS, k=4)),
        )
        for i in range(TOOLS)
    ]


def main() -> int:
    documents = catalog(7)
    start = time.process_time()
    index = SearchIndex.build(documents)
    built = time.process_time() - start
    rng = random.Random(11)
    queries = [" ".join(rng.choices(VERBS + NOUNS, k=rng.randint(1, 4))) for _ in range(150)]
    for _ in range(50):
        word = rng.choice(WORDS)
        queries.append(f"{rng.choice(VERBS)} {word[:2]}x{word[3:]} {word[1]}{word[0]}{word[2:]}")
    took = []
    for query in queries:
        start = time.process_time()
        index.search(query)
        took.append((time.process_time() - start) * 1000)
    took.sort()
    print(f"index of {TOOLS} tools, {len(index.vocabulary)} words: {built * 1000:.0f} ms (limit 1000)")
    print(f"query: median {took[len(took) // 2]:.2f} ms, p99 {took[int(len(took) * 0.99)]:.2f} ms (limit 5)")
    return 0 if built < 1 and took[int(len(took) * 0.99)] < 5 else 1


if __name__ == "__main__":
    sys.exit(main())
