"""`make pause`: how long each matcher, parser and renderer that a peer feeds holds the event loop up, by size of input."""

from __future__ import annotations

import sys

from tests.harness.cpu_time import PAUSE_S, least_cpu
from tests.pause.steps import CASES


def main() -> int:
    print(f"{'fed by a peer':<40} {'ms of processor time, by size of input'}")
    is_short = True
    for case in CASES:
        took = [(size, least_cpu(step)) for size, step in case.steps()]
        shown = "  ".join(f"{size:>9,}: {seconds * 1000:6.1f}" for size, seconds in took)
        fits = all(seconds < case.pause_s for _, seconds in took)
        is_short = is_short and fits
        allowed = "" if case.pause_s == PAUSE_S else f"   (allowed: {case.pause_s * 1000:.0f} ms)"
        mark = allowed if fits else "   TOO LONG"
        print(f"{case.name:<40} {shown}{mark}")
    print(f"allowed: {PAUSE_S * 1000:.0f} ms, unless stated")
    return 0 if is_short else 1


if __name__ == "__main__":
    sys.exit(main())
