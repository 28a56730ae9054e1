"""What one version decides on the generated calls: for each configuration one line, with a list of decisions, or its problems.

python -m tests.decision_equality.answers [COUNT] > ANSWERS.jsonl, with the version in question on PYTHONPATH.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.decision_equality.adapter import Plain, decided
from tests.decision_equality.generated_calls import CONFIGURATIONS, Call, Case, Session, cases

from taskgate.assembly.plan import build_plan
from taskgate.config.load import load_text
from taskgate.config.problems import ConfigError
from taskgate.core.catalog.own_tool_names import OWN_SERVER
from taskgate.core.patterns import PatternKind, checked_skeleton
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.scoping.subset import Subset, compose
from taskgate.gateway.plan import Plan

ENVIRONMENT = {"HOME": "/home/ann", "TASKGATE_STATE_DIR": "/nowhere/state"}
FOLDER = Path("/nowhere")


def answers(case: Case) -> list[Plain] | dict[str, list[str]]:
    """Return the decision on each call, or the problems of the configuration."""
    try:
        plan = build_plan(load_text(json.dumps(case.configuration), "taskgate.yaml", FOLDER, ENVIRONMENT))
    except ConfigError as error:
        return {"problems": sorted(f"{each.key}: {each.message}" for each in error.problems)}
    subsets = [subset_of(plan, session) for session in case.sessions]
    return [answer(plan, case, subsets[call.session], call) for call in case.calls]


def subset_of(plan: Plan, session: Session) -> Subset:
    scope = plan.scopes.get(session.scope, ScopePolicy(session.scope, enabled=False))
    return compose(plan.registry, scope, SessionRequest.parse(session.servers, session.tools), strict=False)


def answer(plan: Plan, case: Case, subset: Subset, call: Call) -> Plain:
    """Return whether scope or session exclude a call, and the decision of the gates, also for an excluded one."""
    kind, server, name = PatternKind(call.kind), call.server, call.name
    row = decided(
        plan.gates,
        kind,
        server,
        name,
        listed=call.listed,
        alike=call.alike,
        quarantined=call.quarantined,
        from_script=call.from_script,
        withheld=() if call.listed else withheld(plan, case, subset, call),
    )
    return {"scope": excluded(subset, call, kind), **row}


def excluded(subset: Subset, call: Call, kind: PatternKind) -> str | None:
    """Return why the scope or the session excludes this name, or None."""
    if call.server == OWN_SERVER:
        return None
    if not admits(subset, kind, call.server, call.name):
        why = subset.explain(call.server, call.name, kind)
        return f"{why.reason.value}: {why.detail}" if why is not None else "not admitted"
    looks = subset.denies_lookalike(call.server, call.name, kind) if call.alike or not call.listed else None
    return looks.detail if looks is not None else None


def withheld(plan: Plan, case: Case, subset: Subset, call: Call) -> tuple[str, ...]:
    """Return the skeleton of an unlisted name if it is that of a listed one which this caller may not use."""
    kind, looks = PatternKind(call.kind), checked_skeleton(call.name, PatternKind(call.kind))
    for other in case.offers[call.server][call.kind]:
        if checked_skeleton(other, kind) != looks:
            continue
        found = decided(
            plan.gates,
            kind,
            call.server,
            other,
            listed=True,
            alike=(),
            quarantined=call.quarantined,
            from_script=call.from_script,
        )
        if not admits(subset, kind, call.server, other) or found["action"] == "deny":
            return (looks,)
    return ()


def admits(subset: Subset, kind: PatternKind, server: str, name: str) -> bool:
    return subset.admits(server, name) if kind is PatternKind.TOOL else subset.admits_kind(server, name, kind)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else CONFIGURATIONS
    for case in cases(count):
        print(json.dumps(answers(case), sort_keys=True))


if __name__ == "__main__":
    main()
