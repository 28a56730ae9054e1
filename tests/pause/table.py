"""`make pause`: how long each matcher, parser and renderer that a peer feeds holds the event loop up, by size of input."""

from __future__ import annotations

import sys

from tests.harness.cpu_time import PAUSE_S, least_cpu
from tests.pause.steps import CASES


def main() -> int:
    print(f"{'fed by a peer':<40} {'ms of processor time, by size of input'}")
    longest = 0.0
    for case in CASES:
        took = [(size, least_cpu(step)) for size, step in case.steps()]
        longest = max(longest, *(seconds for _, seconds in took))
        shown = "  ".join(f"{size:>9,}: {seconds * 1000:6.1f}" for size, seconds in took)
        mark = "" if all(seconds < PAUSE_S for _, seconds in took) else "   TOO LONG"
        print(f"{case.name:<40} {shown}{mark}")
    print(f"the longest pause: {longest * 1000:.1f} ms; allowed: {PAUSE_S * 1000:.0f} ms")
    return 0 if longest < PAUSE_S else 1


if __name__ == "__main__":
    sys.exit(main())
