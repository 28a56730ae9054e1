"""The policy engine: Cedar policies, parsed once and evaluated in two steps. The only module that uses the Cedar library.

A call is authorized for the action `Forward`, then for `Approve`. If the evaluation of any policy fails, the call is
rejected: Cedar itself skips a failing policy, and a skipped `forbid` forbids nothing. Policies are checked when they
are loaded, and every problem is reported with file and line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import cedarpy

from taskgate.core.digest import digest
from taskgate.core.facts.table import plain_facts
from taskgate.core.governance.pipeline import PolicyAnswer, PolicyVerdict
from taskgate.core.identity.identity import tenant_of
from taskgate.core.patterns import PatternKind
from taskgate.policy import cedar_checks as checks
from taskgate.policy.cedar_statements import PolicyFile, Statement, statements
from taskgate.policy.cedar_values import cedar_record
from taskgate.ports.policy_engine import PolicyRequest

MAX_REMEMBERED_ENTITIES = 4_096
_RESOURCE_TYPE = {
    PatternKind.TOOL: checks.TOOL,
    PatternKind.RESOURCE: checks.RESOURCE,
    PatternKind.PROMPT: checks.PROMPT,
}


class BadPolicy(ValueError):
    """Policies that must not be served. The message lists every problem with file and line."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class EvaluationFailed(ValueError):
    """The evaluation of a policy failed, so the decision of Cedar is not valid."""


class CedarEngine:
    """Parsed policies and their entities. Created by `load_cedar`."""

    def __init__(
        self, sources: Sequence[Statement], policies: Sequence[Mapping[str, Any]], entities: Sequence[Mapping[str, Any]]
    ) -> None:
        self._sources = tuple(sources)
        self._policies = tuple(policies)
        self._prepared = cedarpy.PolicySet.from_str("\n".join(source.text for source in sources))
        self._entities = {_uid(entity["uid"]): dict(entity) for entity in entities}
        self._remembered: dict[tuple[Any, ...], cedarpy.Entities] = {}
        self._read = _read_by_any(policies)
        self._facts = sorted(frozenset[str]().union(*map(checks.facts_read, policies)))
        self._revision = digest([[source.text for source in sources], list(entities)])

    @property
    def revision(self) -> str:
        """A digest of the policies and entities."""
        return self._revision

    def evaluate(self, request: PolicyRequest) -> PolicyAnswer:
        """Return forward, else approve, else reject; any error rejects."""
        try:
            cedar_request, entities = self._cedar_request(request), self._entities_for(request)
            forward = self._authorize(cedar_request, checks.FORWARD, entities)
            if forward.allowed:
                return PolicyAnswer(PolicyVerdict.FORWARD, self._because(forward))
            approve = self._authorize(cedar_request, checks.APPROVE, entities)
        except ValueError as error:
            return PolicyAnswer(PolicyVerdict.REJECT, f"cannot be evaluated: {self._with_places(str(error))}")
        if approve.allowed:
            return PolicyAnswer(PolicyVerdict.APPROVE, self._because(approve), self._picked(approve))
        return PolicyAnswer(PolicyVerdict.REJECT, self._because(approve))

    def workflows(self) -> Mapping[str, str]:
        """Return every workflow named by `@approval`, with the place of the first policy that names it."""
        named: dict[str, str] = {}
        for source, policy in zip(self._sources, self._policies, strict=True):
            workflow = policy.get("annotations", {}).get(checks.APPROVAL_ANNOTATION)
            if workflow:
                named.setdefault(workflow, source.place)
        return named

    def contradictions(self, server: str, tool: str, input_schema: Mapping[str, Any]) -> tuple[str, ...]:
        """Return warnings about policies that apply to this tool and expect other arguments than it declares."""
        found: dict[str, None] = {}
        for source, policy in zip(self._sources, self._policies, strict=True):
            named = checks.tools_named(policy)
            if named is not None and not named & {tool, f"{server}:{tool}"}:
                continue
            for use in checks.uses(policy):
                problem = checks.contradiction(use, input_schema, named=named is not None)
                if problem is not None:
                    found[f"{source.place}: for {server}:{tool}: the policy {problem}"] = None
        return tuple(found)

    def _cedar_request(self, request: PolicyRequest) -> dict[str, Any]:
        # Every argument must be expressible, but Cedar only gets those that a policy reads: it parses the context in
        # each step, which is most of the cost.
        arguments = cedar_record(request.arguments)
        if self._read is not None:
            arguments = {key: value for key, value in arguments.items() if key in self._read}
        context = {
            "arguments": arguments,
            "server": request.server,
            "tool": request.name,
            "scope": request.scope,
            "policy_id": request.policy_id,
            **plain_facts(self._facts, request.known),
            "caller": _caller(request),
            "time": {
                "hour": request.time.hour,
                "day_of_week": request.time.day_of_week,
                "timestamp": request.time.timestamp,
            },
        }
        return {
            "principal": {"type": checks.CALLER, "id": request.principal},
            "resource": _resource_uid(request),
            "context": json.dumps(context, ensure_ascii=False),
        }

    def _authorize(self, cedar_request: dict[str, Any], action: str, entities: cedarpy.Entities) -> cedarpy.AuthzResult:
        request = {**cedar_request, "action": {"type": checks.ACTION, "id": action}}
        result = cedarpy.is_authorized(request, self._prepared, entities)
        if result.diagnostics.errors or result.decision is cedarpy.Decision.NoDecision:
            raise EvaluationFailed("; ".join(result.diagnostics.errors) or "no decision")
        return result

    def _entities_for(self, request: PolicyRequest) -> cedarpy.Entities:
        key = (request.principal, request.roles, request.kind, request.server, request.name, request.tags)
        found = self._remembered.get(key)
        if found is None:
            if len(self._remembered) >= MAX_REMEMBERED_ENTITIES:
                self._remembered.clear()
            found = self._remembered[key] = cedarpy.Entities.from_json_str(json.dumps(self._merged(request)))
        return found

    def _merged(self, request: PolicyRequest) -> list[dict[str, Any]]:
        caller: dict[str, Any] = {
            "uid": {"type": checks.CALLER, "id": request.principal},
            "attrs": {},
            "parents": [{"type": checks.ROLE, "id": role} for role in sorted(request.roles)],
        }
        resource: dict[str, Any] = {
            "uid": _resource_uid(request),
            "attrs": {"server": request.server, "name": request.name, "tags": sorted(request.tags)},
            "parents": [],
        }
        merged = dict(self._entities)
        for entity in (caller, resource):
            known = merged.get(_uid(entity["uid"]), {"attrs": {}, "parents": []})
            merged[_uid(entity["uid"])] = {
                "uid": entity["uid"],
                "attrs": {**known.get("attrs", {}), **entity["attrs"]},
                "parents": [*known.get("parents", ()), *(p for p in entity["parents"] if p not in known["parents"])],
            }
        return list(merged.values())

    def _picked(self, result: cedarpy.AuthzResult) -> tuple[str, ...]:
        numbers = sorted(_number(reason) for reason in result.diagnostics.reasons)
        picked = (self._policies[n].get("annotations", {}).get(checks.APPROVAL_ANNOTATION) for n in numbers)
        return tuple(dict.fromkeys(workflow for workflow in picked if workflow))

    def _because(self, result: cedarpy.AuthzResult) -> str:
        numbers = sorted(_number(reason) for reason in result.diagnostics.reasons)
        return ", ".join(self._sources[n].place for n in numbers) or "no policy permits it"

    def _with_places(self, message: str) -> str:
        for number in reversed(range(len(self._sources))):
            message = message.replace(f"`policy{number}`", f"at {self._sources[number].place}")
        return message


def load_cedar(files: Iterable[PolicyFile], entities: Sequence[Mapping[str, Any]] = ()) -> CedarEngine:
    """Parse and check policies. `entities` is the parsed content of the operator's entities file, if there is one."""
    problems: list[str] = []
    types = checks.ENTITY_TYPES | {entity["uid"]["type"] for entity in entities}
    sources: list[Statement] = []
    policies: list[Mapping[str, Any]] = []
    for source in (statement for file in files for statement in statements(file)):
        try:
            policy = _parsed(source)
        except ValueError as error:
            problems.append(f"{source.place}: {error}")
            continue
        found = dict.fromkeys(checks.problems(policy, types, more_attributes=bool(entities)))
        problems.extend(f"{source.place}: {problem}" for problem in found)
        sources.append(source)
        policies.append(policy)
    if problems:
        raise BadPolicy(problems)
    try:
        cedarpy.Entities.from_json_str(json.dumps(list(entities)))
        return CedarEngine(sources, policies, entities)
    except ValueError as error:
        raise BadPolicy([f"the entities cannot be used: {error}"]) from error


def _parsed(source: Statement) -> Mapping[str, Any]:
    parsed = json.loads(cedarpy.policies_to_json_str(source.text))
    if parsed["templates"]:
        raise ValueError("templates with ?principal or ?resource are not supported; write the entity itself")
    (policy,) = parsed["staticPolicies"].values()
    return dict(policy)


def _read_by_any(policies: Iterable[Mapping[str, Any]]) -> frozenset[str] | None:
    read: frozenset[str] = frozenset()
    for policy in policies:
        own = checks.arguments_read(policy)
        if own is None:
            return None
        read |= own
    return read


def _caller(request: PolicyRequest) -> dict[str, Any]:
    """Return what is known about the caller. Unknown facts are omitted, so a policy that reads one without `has`
    rejects.
    """
    caller: dict[str, Any] = {"principal": request.principal, "groups": sorted(request.roles), "token_scopes": []}
    if tenant := tenant_of(request.principal):
        caller["tenant"] = tenant
    if (facts := request.facts) is not None:
        caller["token_scopes"] = sorted(facts.oauth_scopes)
        if facts.client_id:
            caller["client_id"] = facts.client_id
        if facts.authenticated_at is not None:
            # The issuer's clock may be ahead.
            caller["authentication_age"] = max(0, request.time.timestamp - facts.authenticated_at)
    return caller


def _resource_uid(request: PolicyRequest) -> dict[str, str]:
    return {"type": _RESOURCE_TYPE[request.kind], "id": f"{request.server}:{request.name}"}


def _uid(uid: Mapping[str, str]) -> tuple[str, str]:
    return uid["type"], uid["id"]


def _number(reason: str) -> int:
    """Cedar numbers policies in the order of the text: `policy0`, `policy1`."""
    return int(reason.removeprefix("policy"))
