"""How long scoping takes: cold composition of a large registry, and one remembered decision.

Times are CPU time, which other work on the machine does not stretch. Run with `python tests/benchmarks/scoping.py`;
prints one line per measurement and ends non-zero if a limit is missed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from taskgate.core.catalog.names import NameTable
from taskgate.core.patterns import PatternSet
from taskgate.core.scoping.registry import Registry, RegistryRecord
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.scoping.subset import Subset, compose

SERVERS, TOOLS = 200, 50
CALLS = 1_000_000


def patterns(layer: str) -> tuple[PatternSet, PatternSet]:
    """Twenty patterns as people write them: names, heads, tails, stars inside, a class, some for one server; 5 deny."""
    exact = [f"tool_{i}_{layer}" for i in range(4)]
    heads = [f"{layer}_{i}_*" for i in range(2)] + ["get_*", "tool_1*"]
    tails = [f"*_{layer}_{i}" for i in range(2)]
    inside = [f"a*{layer}*z", f"*{layer}_mid*", "tool_[2-4]?_*"]
    limited = [f"server{i}:only_{layer}" for i in range(2)]
    denied = [f"drop_{layer}*", "delete_*", f"*_{layer}_secret", f"x*{layer}*y", f"server3:no_{layer}"]
    return PatternSet.of(exact + heads + tails + inside + limited), PatternSet.of(denied)


def tools_of(server: int) -> list[str]:
    return [f"tool_{i}_of_{server}" for i in range(TOOLS)]


def inputs(run: int) -> tuple[Registry, ScopePolicy, SessionRequest]:
    """Fresh patterns in each run, so that no run profits from what an earlier one left in a cache."""
    lists = [patterns(f"r{run}x{i}") for i in range(SERVERS)]
    records = [RegistryRecord(f"server{i}", allowed_tools=a, denied_tools=d) for i, (a, d) in enumerate(lists)]
    allow, deny = patterns(f"s{run}")
    wanted, unwanted = patterns(f"q{run}")
    scope = ScopePolicy("bench", ("*",), tool_allowlist=allow, tool_denylist=deny)
    return Registry.build(records), scope, SessionRequest((), (wanted,), unwanted)


LISTED = {f"server{i}": tools_of(i) for i in range(SERVERS)}
CATALOG = [(server, tool) for server, tools in LISTED.items() for tool in tools]


def decide_all(subset: Subset) -> int:
    return sum(len(subset.admitted(server, tools)) for server, tools in LISTED.items())


def milliseconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1000


def main() -> int:
    cold = []
    for run in range(7):
        registry, scope, request = inputs(run)
        cold.append(milliseconds(lambda r=registry, s=scope, q=request: decide_all(compose(r, s, q))))  # type: ignore[misc]
    subset = compose(registry, scope, request)
    admitted = decide_all(subset)
    per_call = milliseconds(lambda: [subset.admits("server7", "tool_11_of_7") for _ in range(CALLS)]) / CALLS
    naming = milliseconds(lambda: NameTable.build(CATALOG))
    median = sorted(cold)[len(cold) // 2]
    print(f"composition, cold, {SERVERS} servers x {TOOLS} tools x 20 patterns a layer: {median:.1f} ms (limit 50)")
    print(f"  of {SERVERS * TOOLS} tools {admitted} are admitted; slowest of {len(cold)} runs {max(cold):.1f} ms")
    print(f"one remembered decision: {per_call * 1000:.3f} us (limit 50)")
    print(f"naming {SERVERS * TOOLS} tools: {naming:.1f} ms")
    return 0 if median <= 50 and per_call <= 0.05 else 1


if __name__ == "__main__":
    sys.exit(main())
