"""How a version decides a call. Only this file depends on it: what it returns is the same for all versions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from taskgate.core.governance import pipeline
from taskgate.core.governance.decision import (
    Denied,
    Forward,
    NeedsApproval,
    NeedsPolicy,
    action_of,
    strictness,
)
from taskgate.core.governance.pipeline import Gates, PolicyAnswer, PolicyVerdict, conclude, decide, decide_unlisted
from taskgate.core.patterns import PatternKind

Plain = dict[str, Any]
"""A decision as plain data."""
NOT_DECIDED = "not decided by this version"
ANSWERS = (
    PolicyAnswer(PolicyVerdict.FORWARD, "permitted"),
    PolicyAnswer(PolicyVerdict.REJECT, "forbidden"),
    PolicyAnswer(PolicyVerdict.APPROVE, "approved"),
    PolicyAnswer(PolicyVerdict.APPROVE, "approved", ("money",)),
    PolicyAnswer(PolicyVerdict.APPROVE, "approved", ("ops", "board", "money")),
    PolicyAnswer(PolicyVerdict.APPROVE, "approved", ("gone",)),
)
"""What a policy engine may answer. The decision that follows from each is compared."""


def decided(
    gates: Gates,
    kind: PatternKind,
    server: str,
    name: str,
    *,
    listed: bool,
    alike: Collection[str],
    quarantined: Collection[tuple[str, str]],
    from_script: bool,
    withheld: Collection[str] = (),
) -> Plain:
    """Return the decision on a call by its name. `withheld` as in `decide_unlisted`."""
    used = _gates_of(gates, from_script)
    found: Any
    if not listed:
        found = decide_unlisted(used, kind, server, name, quarantined=quarantined, withheld=withheld)
    elif not alike:
        found = decide(used, kind, server, name, quarantined=quarantined)
    elif hasattr(pipeline, "decide_listed"):
        found = pipeline.decide_listed(used, kind, server, name, alike, quarantined=quarantined)
    else:
        return {"action": NOT_DECIDED}
    answers = [conclude(used, found, answer) for answer in ANSWERS] if isinstance(found, NeedsPolicy) else []
    return {
        **plain(found),
        "forced": kind is PatternKind.TOOL and used.rules.forced(server, name),
        "after_policy": [plain(each) for each in answers],
    }


def _gates_of(gates: Any, from_script: bool) -> Gates:
    """Versions up to 8b5656b4 compile rules twice; later ones evaluate a condition on the caller."""
    if hasattr(gates, "for_calls"):
        found: Gates = gates.for_calls(from_script=from_script)
        return found
    from taskgate.core.facts.table import Facts

    return gates.of_caller(Facts(from_script=from_script))


def plain(decision: Any) -> Plain:
    row: Plain = {"action": action_of(decision).value, "strictness": int(strictness(decision)), "rule": decision.rule}
    row["reason"] = decision.reason
    match decision:
        case Forward():
            row["note"] = decision.note.value if decision.note is not None else None
        case NeedsApproval():
            row["workflow"] = decision.workflow
        case NeedsPolicy():
            row |= {"policy_id": decision.policy_id, "workflow": decision.workflow}
            row["at_least_approve"] = decision.at_least_approve
        case Denied():
            row |= {"gate": decision.gate.value, "error_type": decision.error_type}
    return row
