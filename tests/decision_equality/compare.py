"""Compare how this version and another one decide the generated calls: `make decision-equality BASE=COMMIT`.

python -m tests.decision_equality.compare COMMIT [--configurations 1000] [--show 20]

Prints each kind of difference once, with the number of calls and the shortest configuration with one, and fails if there is one.
All differences are written to build/decision-equality.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
from tests.decision_equality.adapter import NOT_DECIDED, Plain
from tests.decision_equality.generated_calls import CONFIGURATIONS, Call, Case, Tree, cases
from tests.harness.other_version import ROOT, run_module, source_of

JOINT = "+"
"""Between the names of workflows that must all approve."""
NAMED = ("action", "scope", "gate", "error_type", "note", "forced")
"""Of these fields the values are part of the kind of a difference; of the others only the name is."""


class Difference(msgspec.Struct, frozen=True):
    kind: str
    configuration: Tree
    call: Call | None
    before: Plain
    after: Plain


class Comparison(msgspec.Struct):
    configurations: int = 0
    refused: int = 0
    """Configurations that both versions refuse for the same reasons."""
    equal: int = 0
    not_decided: int = 0
    """Calls that one version does not decide."""
    joint: int = 0
    """Calls for which two workflows must approve, where versions up to 8b5656b4 asked one of them."""
    found: dict[str, list[Difference]] = msgspec.field(default_factory=lambda: defaultdict(list))

    def add(self, case: Case, before: list[Plain] | Plain, after: list[Plain] | Plain) -> None:
        self.configurations += 1
        if isinstance(before, dict) or isinstance(after, dict):
            if before == after:
                self.refused += 1
            else:
                refusals = [each if isinstance(each, dict) else {} for each in (before, after)]
                self._different("problems of the configuration", case, None, refusals[0], refusals[1])
            return
        for call, old, new in zip(case.calls, before, after, strict=True):
            if NOT_DECIDED in (old["action"], new["action"]):
                self.not_decided += 1
            elif old == new:
                self.equal += 1
            elif old == _with_one_workflow(new, old):
                self.joint += 1
            else:
                self._different(kind_of(old, new), case, call, old, new)

    def _different(self, kind: str, case: Case, call: Call | None, before: Plain, after: Plain) -> None:
        self.found[kind].append(Difference(kind, case.configuration, call, before, after))


def _with_one_workflow(new: Any, old: Any) -> Any:
    """Return the new value with each joint workflow replaced by the one that the old value names, if it is one of its parts."""
    if isinstance(new, dict) and isinstance(old, dict):
        return {key: _with_one_workflow(value, old.get(key)) for key, value in new.items()}
    if isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        return [_with_one_workflow(*pair) for pair in zip(new, old, strict=True)]
    if isinstance(new, str) and isinstance(old, str):
        name, before = new.removeprefix("workflow "), old.removeprefix("workflow ")
        return old if JOINT in name and before in name.split(JOINT) else new
    return new


def kind_of(before: Plain, after: Plain) -> str:
    """Return which fields differ, with the values of the main ones."""
    parts = []
    for field in sorted({*before, *after}, key=lambda name: (name != "action", name)):
        old, new = before.get(field), after.get(field)
        if old != new:
            values = f" {json.dumps(old)} -> {json.dumps(new)}" if field in NAMED else ""
            parts.append(f"{field}{values}")
    return ", ".join(parts)


def compared(case_list: Iterable[Case], before: str, after: str) -> Comparison:
    found = Comparison()
    for case, old, new in zip(case_list, before.splitlines(), after.splitlines(), strict=True):
        found.add(case, json.loads(old), json.loads(new))
    return found


def shown(examples: list[Difference]) -> str:
    """Return a kind of difference with the example that has the shortest configuration."""
    one = min(examples, key=lambda each: len(json.dumps(each.configuration)))
    lines = [f"{len(examples):6} calls: {one.kind}", f"    configuration: {json.dumps(one.configuration)}"]
    if one.call is not None:
        lines.append(f"    call: {msgspec.json.encode(one.call).decode()}")
    fields = sorted(field for field in {*one.before, *one.after} if one.before.get(field) != one.after.get(field))
    lines += [
        f"    {field}: {json.dumps(one.before.get(field))} -> {json.dumps(one.after.get(field))}" for field in fields
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("commit")
    parser.add_argument("--configurations", type=int, default=CONFIGURATIONS)
    parser.add_argument("--show", type=int, default=20)
    options = parser.parse_args()
    count = str(options.configurations)
    before, after = (
        run_module(source, "tests.decision_equality.answers", count)
        for source in (source_of(options.commit), ROOT / "src")
    )
    result = compared(cases(options.configurations), before, after)
    for examples in sorted(result.found.values(), key=len, reverse=True)[: options.show]:
        print(shown(examples))
    every = [each for examples in result.found.values() for each in examples]
    output = ROOT / "build" / "decision-equality.jsonl"
    output.parent.mkdir(exist_ok=True)
    output.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in every))
    print(
        f"{result.configurations} configurations ({result.refused} refused by both): {result.equal} calls decided equally, "
        f"{result.joint} by both workflows instead of one, "
        f"{len(every)} differently in {len(result.found)} ways, {result.not_decided} not decided by one version"
    )
    sys.exit(1 if every else 0)


if __name__ == "__main__":
    main()
