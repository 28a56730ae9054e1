"""Rules for refusing late calls, in a model of the gateway: one worker, calls at equal intervals, in order of arrival.

Run it by hand: `python -m tests.benchmarks.lateness`. The controls are the rule without an interval (a call that waited longer
than the target is refused) and the rule that counts every late call, even while other programs use the CPU. All see the same
arrivals and stalls. Nothing is timed, so the table is the same on every machine.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tests.core.test_lateness import TARGET_S, WORK_S, Policy, Stall, simulate, stopped

from taskgate.core.lateness import Lateness, TimeAndCpu

SECONDS = 60.0
STALLS = tuple(Stall(float(second), 0.7) for second in range(3, 60, 6))
STOPPED = tuple(stopped(0.05, 300))


@dataclass
class WithoutInterval:
    def refuses(self, now: TimeAndCpu, waited_s: float) -> bool:
        return waited_s > TARGET_S


class EveryLateCall(Lateness):
    """As if the process had used the CPU all the time."""

    def refuses(self, now: TimeAndCpu, waited_s: float) -> bool:
        return super().refuses(TimeAndCpu(now.at, now.at), waited_s)


def main() -> None:
    print(f"target {TARGET_S} s, {1 / WORK_S:.0f} calls/s possible, {SECONDS:.0f} s")
    print(f"{'load':42} {'rule':18} {'answered':>9} {'refused':>8} {'p50 ms':>7} {'p99 ms':>7} {'max ms':>7}")
    loads = {
        "a tenth, with a stall of 0.7 s every 6 s": (0.1, STALLS),
        "a half, with a stall of 0.7 s every 6 s": (0.5, STALLS),
        "95%": (0.95, ()),
        "1.5 times": (1.5, ()),
        "4 times": (4.0, ()),
        "5%, with 5% of a CPU": (0.05, STOPPED),
        "20%, with 5% of a CPU": (0.2, STOPPED),
    }
    for name, (factor, stalls) in loads.items():
        rules: dict[str, Policy] = {
            "without interval": WithoutInterval(),
            "every late call": EveryLateCall(TARGET_S),
            "now": Lateness(TARGET_S),
        }
        for rule, policy in rules.items():
            found = simulate(policy, factor / WORK_S, SECONDS, stalls)
            waits = [wait * 1000 for wait in found.waits]
            hundredths = statistics.quantiles(waits, n=100)
            figures = f"{len(waits):9} {found.refused:8} {hundredths[49]:7.0f} {hundredths[98]:7.0f} {max(waits):7.0f}"
            print(f"{name:42} {rule:18} {figures}")


if __name__ == "__main__":
    main()
