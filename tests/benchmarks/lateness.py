"""Two rules for refusing late calls, in a model of the gateway: one worker, calls at equal intervals, in order of arrival.

Run it by hand: `python -m tests.benchmarks.lateness`. The control is the rule without an interval (a call that waited longer than
the target is refused); both see the same arrivals and stalls. Nothing is timed, so the table is the same on every machine.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tests.core.test_lateness import TARGET_S, WORK_S, Policy, simulate

from taskgate.core.lateness import Lateness

SECONDS = 60.0
STALLS = tuple((float(second), 0.7) for second in range(3, 60, 6))


@dataclass
class WithoutInterval:
    def refuses(self, now: float, waited_s: float) -> bool:
        return waited_s > TARGET_S


def main() -> None:
    print(f"target {TARGET_S} s, {1 / WORK_S:.0f} calls/s possible, {SECONDS:.0f} s")
    print(f"{'load':42} {'rule':18} {'answered':>9} {'refused':>8} {'p50 ms':>7} {'p99 ms':>7} {'max ms':>7}")
    loads = {
        "a tenth, with a stall of 0.7 s every 6 s": (0.1, STALLS),
        "a half, with a stall of 0.7 s every 6 s": (0.5, STALLS),
        "95%": (0.95, ()),
        "1.5 times": (1.5, ()),
        "4 times": (4.0, ()),
    }
    for name, (factor, stalls) in loads.items():
        rules: dict[str, Policy] = {"without interval": WithoutInterval(), "now": Lateness(TARGET_S)}
        for rule, policy in rules.items():
            found = simulate(policy, factor / WORK_S, SECONDS, stalls)
            waits = [wait * 1000 for wait in found.waits]
            hundredths = statistics.quantiles(waits, n=100)
            figures = f"{len(waits):9} {found.refused:8} {hundredths[49]:7.0f} {hundredths[98]:7.0f} {max(waits):7.0f}"
            print(f"{name:42} {rule:18} {figures}")


if __name__ == "__main__":
    main()
