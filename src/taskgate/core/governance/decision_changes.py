"""Which decisions change between two configurations: by the effect of a decision, not by the rule that it follows from.

A rule that is moved or gets another reason changes nothing. A decision also changes if its workflow needs fewer or other
approvals, or if the policies that decide are others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, assert_never

import msgspec
from msgspec import Meta

from taskgate.core.facts.conditions import phrase
from taskgate.core.governance.decision import (
    Decision,
    Denied,
    Forward,
    NeedsApproval,
    NeedsPolicy,
    Residue,
    describe,
)
from taskgate.core.governance.workflow import Workflow
from taskgate.core.patterns import PatternKind

NO_ACCESS = "no access"
ACCESS = "access"
SCOPE = "scope"
_OF_APPROVERS = (
    "approvals_needed",
    "approvers",
    "self_approval",
    "on_timeout",
    "max_auth_age_s",
)
"""The settings of a workflow that say who must approve. How approvers are asked, and for how long, is no part of a decision."""


class DecisionOutcome(msgspec.Struct, frozen=True):
    """A decision with what its effect depends on besides."""

    decision: Decision
    as_task: bool = False
    """Whether the tool must be called as a task (`force_required`)."""
    workflow: Workflow | None = None
    """The workflow of an approval that the decision requires."""
    policies: str = ""
    """The revision of the policies, if they decide."""

    @property
    def effect(self) -> tuple[object, ...]:
        """What differs if the outcome is another one for a caller or an approver."""
        return (*_effect(self.decision), self.as_task, self._approvers, self.policies)

    @property
    def _approvers(self) -> tuple[tuple[str, object], ...]:
        found = self.workflow
        return () if found is None else tuple((n, getattr(found, n)) for n in _OF_APPROVERS)

    def text(self) -> str:
        return f"{describe(self.decision)}{', only as a task' if self.as_task else ''}"

    def text_after(self, before: DecisionOutcome) -> str:
        """Return the text of the new outcome, with what differs from `before` and is not in the text of a decision."""
        notes = []
        if self.workflow is not None and before.workflow is not None and self.workflow.name == before.workflow.name:
            was = dict(before._approvers)
            notes += [f"{name} {_word(was[name])} -> {_word(now)}" for name, now in self._approvers if was[name] != now]
        if self.policies and before.policies and self.policies != before.policies:
            notes.append("with other policies")
        return f"{self.text()}; {', '.join(notes)}" if notes else self.text()


def _effect(decision: Decision) -> tuple[object, ...]:
    match decision:
        case Forward():
            return "forward", decision.note
        case NeedsApproval():
            return "approve", decision.workflow
        case NeedsPolicy():
            return "policy", decision.policy_id, decision.workflow, decision.at_least_approve
        case Denied():
            return "deny", decision.error_type
        case Residue():
            layers = ((phrase(each.conditions), _effect(each.decision)) for layer in decision.layers for each in layer)
            return "depends on the call", *layers
        case _:
            assert_never(decision)


def _word(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


class ChangedName(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller names. `name` is empty for a whole scope."""

    kind: Annotated[str, Meta(description="`tool`, `resource`, `prompt` or `scope`")]
    server: Annotated[str, Meta(description="name of the server; empty for a scope")] = ""
    name: Annotated[str, Meta(description="the server's own name, a URI, or the name of a scope")]
    pattern: Annotated[
        str, Meta(description="pattern of the names that `name` is an example of; empty for a listed name")
    ] = ""
    from_script: Annotated[bool, Meta(description="whether the change is only about calls of scripts")] = False

    def text(self) -> str:
        if self.kind == SCOPE:
            return f"scope {self.name}"
        prefix = "" if self.kind == PatternKind.TOOL else f"{self.kind}:"
        example = f" (for example {self.name})" if self.pattern else ""
        return f"{self.server}:{prefix}{self.pattern or self.name}{example}{' in scripts' if self.from_script else ''}"


class DecisionChange(ChangedName, frozen=True, kw_only=True):
    """One changed decision, for all callers and scopes for which it changes in the same way."""

    before: Annotated[str, Meta(description="decision of the old configuration")]
    after: Annotated[str, Meta(description="decision of the new configuration")]
    callers: Annotated[tuple[str, ...], Meta(description="principals for whom it changes")]
    all_callers: Annotated[bool, Meta(description="whether these are all callers that may use the scopes")]
    scopes: Annotated[tuple[str, ...], Meta(description="scopes in which it changes")]
    all_scopes: Annotated[bool, Meta(description="whether these are all scopes")]

    def line(self) -> str:
        scopes = "" if self.all_scopes or self.kind == SCOPE else f"  scopes: {', '.join(self.scopes)}"
        callers = "all" if self.all_callers else ", ".join(self.callers)
        return f"{self.text()}  {self.before} -> {self.after}  callers: {callers}{scopes}"


class ScopeChange(msgspec.Struct, frozen=True):
    """One decision that changes in one scope, for some callers in the same way."""

    subject: ChangedName
    scope: str
    callers: tuple[str, ...]
    before: str
    after: str


def grouped(found: Iterable[ScopeChange], callers_of: Mapping[str, Collection[str]]) -> list[DecisionChange]:
    """Return one change for all callers and scopes with the same one. `callers_of` has the callers that may use each scope in both
    versions."""
    callers: dict[tuple[ChangedName, str, str, str], dict[str, None]] = {}
    for each in found:
        key = (each.subject, each.before, each.after, each.scope)
        callers.setdefault(key, {}).update(dict.fromkeys(each.callers))
    scopes: dict[tuple[ChangedName, str, str, tuple[str, ...], bool], list[str]] = {}
    for (subject, before, after, scope), some in callers.items():
        # All callers of each scope are one group, also if other callers may use another scope.
        is_all = subject.kind != SCOPE and some.keys() >= set(callers_of[scope])
        scopes.setdefault((subject, before, after, () if is_all else tuple(some), is_all), []).append(scope)
    used = [scope for scope, some in callers_of.items() if some]
    return [
        DecisionChange(
            kind=subject.kind,
            server=subject.server,
            name=subject.name,
            pattern=subject.pattern,
            from_script=subject.from_script,
            before=before,
            after=after,
            callers=some or tuple(dict.fromkeys(caller for scope in where for caller in callers_of[scope])),
            all_callers=is_all,
            scopes=tuple(where),
            all_scopes=set(where) >= set(used),
        )
        for (subject, before, after, some, is_all), where in scopes.items()
    ]
