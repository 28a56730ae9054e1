"""How much a governed call costs: `python tests/benchmarks/governance.py [--json]`.

Prints the time to compile 1,000 rules, the cost of a remembered and of a first decision, of one Cedar evaluation, of
a digest and of one step of an approval. Exits with 1 if a number of the documentation is exceeded.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from itertools import count

from tests.benchmarks.one_reply_server import compact

from taskgate.core.digest import digest_of_json
from taskgate.core.governance.approval import Binding, Verdict, Voted, apply, open_approval
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.pipeline import Gates, PolicyVerdict, decide
from taskgate.core.governance.rules import compile_rules
from taskgate.core.governance.workflow import Workflow
from taskgate.core.patterns import PatternKind
from taskgate.core.settings.governance import Action, Rule
from taskgate.policy.cedar import load_cedar
from taskgate.policy.cedar_statements import PolicyFile
from taskgate.ports.policy_engine import PolicyRequest, PolicyTime


def rules(salt: int = 0) -> list[Rule]:
    """A thousand rules of mixed shapes; another salt makes patterns that were never compiled before."""
    return [
        Rule(f"t{salt}_{n:04}_*" if n % 3 else f"*{salt}_{n:04}[a-f]?", Action.DENY if n % 2 else Action.APPROVE)
        for n in range(1_000)
    ]


POLICY = """
permit (principal, action == Taskgate::Action::"Forward", resource)
when { context.policy_id == "payments" && context.arguments.amount <= 100 };
@approval("money")
permit (principal in Taskgate::Role::"finance", action == Taskgate::Action::"Approve", resource)
when { context.arguments.amount <= 10000 };
forbid (principal, action, resource) when { context.time.hour < 6 };
"""
ARGUMENTS = {"amount": 50, "to": "ann", "note": "for the books " * 10, "lines": [{"sku": "a", "count": 3}] * 5}
LIMIT_US = {"compile_1000_rules": 100_000.0, "cached_decision": 20.0, "cedar_forward": 300.0, "cedar_approve": 300.0}


def cost_us(work: Callable[[], object], rounds: int) -> float:
    """The median of five runs, in microseconds a call."""
    runs = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(rounds):
            work()
        runs.append((time.process_time() - began) / rounds * 1e6)
    return sorted(runs)[2]


def measure() -> dict[str, float]:
    """Every figure, in microseconds."""
    gates = Gates("r1", compile_rules(rules()))
    engine = load_cedar([PolicyFile("payments.cedar", POLICY)])
    small = PolicyRequest(
        "agent",
        frozenset({"finance"}),
        "reports",
        "pay",
        ARGUMENTS,
        "default",
        "payments",
        PolicyTime.at(1_800_014_400),
    )
    large = PolicyRequest(
        "agent",
        frozenset({"finance"}),
        "reports",
        "pay",
        {**ARGUMENTS, "amount": 500},
        "default",
        "payments",
        small.time,
    )
    assert engine.evaluate(small).verdict is PolicyVerdict.FORWARD
    assert engine.evaluate(large).verdict is PolicyVerdict.APPROVE
    raw = compact(ARGUMENTS)
    workflow = Workflow("money")
    approval = open_approval("ap", workflow, "r", Binding("agent", "s", "t", "a", "d", "r", 0), 0)
    vote = Voted(Approver("ann", frozenset({"approver"})), Verdict.APPROVE, 1)
    salts = count(1)
    return {
        "compile_1000_rules": cost_us(lambda: compile_rules(rules(next(salts))), 1),
        "first_decision": cost_us(lambda: decide(gates, PatternKind.TOOL, "s", f"nothing_like_{next(salts)}"), 200),
        "cached_decision": cost_us(lambda: decide(gates, PatternKind.TOOL, "s", "nothing_like_it"), 200_000),
        "cedar_forward": cost_us(lambda: engine.evaluate(small), 1_000),
        "cedar_approve": cost_us(lambda: engine.evaluate(large), 1_000),
        "strict_digest": cost_us(lambda: digest_of_json(raw), 5_000),
        "approval_vote": cost_us(lambda: apply(approval, workflow, vote), 20_000),
    }


def main() -> int:
    """Print the figures and compare them with their limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    figures = measure()
    broken = [name for name, limit in LIMIT_US.items() if figures[name] > limit]
    if as_json:
        print(json.dumps({"microseconds": figures, "broken": broken}))
    else:
        for name, figure in figures.items():
            target = f"  (limit: {LIMIT_US[name]:g})" if name in LIMIT_US else ""
            print(f"{name:>20}: {figure:10.2f} us{target}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
