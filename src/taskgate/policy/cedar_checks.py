"""Static checks of policies: unknown names, and arguments that no tool has.

The checks use Cedar's published JSON format of a policy and not the library that parsed it. A misspelled entity type or
action makes a policy that never applies, and a `forbid` that never applies forbids nothing: those are errors.
Attributes of `context.arguments` depend on the tool; if one contradicts the tool's input schema, that is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from taskgate.core.facts.table import ARGUMENT_NAME, FACTS

CALLER, ROLE, ACTION = "Taskgate::Caller", "Taskgate::Role", "Taskgate::Action"
TOOL, RESOURCE, PROMPT = "Taskgate::Tool", "Taskgate::Resource", "Taskgate::Prompt"
FORWARD, APPROVE = "Forward", "Approve"
ENTITY_TYPES = frozenset({CALLER, ROLE, ACTION, TOOL, RESOURCE, PROMPT})
OWN_CONTEXT = frozenset({"arguments", "server", "tool", "scope", "policy_id", "time", "caller"})
FACTS_IN_CONTEXT = frozenset(FACTS) - OWN_CONTEXT - {ARGUMENT_NAME}
"""The facts of rules that have no richer form in the context of policies."""
CONTEXT = OWN_CONTEXT | FACTS_IN_CONTEXT
CALLER_FACTS = frozenset({"principal", "groups", "tenant", "client_id", "token_scopes", "authentication_age"})
TIME = frozenset({"hour", "day_of_week", "timestamp"})
RESOURCE_ATTRIBUTES = frozenset({"server", "name", "tags"})
APPROVAL_ANNOTATION = "approval"

_LONG_OPERATORS = frozenset({"<", "<=", ">", ">=", "+", "-", "*"})
_SET_OPERATORS = frozenset({"contains", "containsAll", "containsAny"})
_DECIMAL_OPERATORS = frozenset({"lessThan", "lessThanOrEqual", "greaterThan", "greaterThanOrEqual"})
_ACCEPTS = {
    "long": {"integer"},
    "decimal": {"number"},
    "string": {"string"},
    "boolean": {"boolean"},
    "set": {"array"},
}


class Use(msgspec.Struct, frozen=True):
    """A policy reads `context.arguments.PATH` as a value of this type."""

    path: tuple[str, ...]
    type: str


def problems(policy: Mapping[str, Any], types: frozenset[str], *, more_attributes: bool) -> Iterator[str]:
    """Yield everything in a policy that cannot be intended. `types` are the known entity types."""
    for entity in _entities(policy):
        if entity["type"] not in types:
            yield f"unknown entity type {entity['type']}; known are {', '.join(sorted(types))}"
        elif entity["type"] == ACTION and entity["id"] not in (FORWARD, APPROVE):
            yield f"unknown action {ACTION}::{entity['id']!r}; there are only {FORWARD!r} and {APPROVE!r}"
    for name in _named_types(policy):
        if name not in types:
            yield f"unknown entity type {name}; known are {', '.join(sorted(types))}"
    for node in _nodes(policy.get("conditions", [])):
        yield from _attribute_problems(node, more_attributes)
    yield from _annotation_problems(policy)


def facts_read(policy: Mapping[str, Any]) -> frozenset[str]:
    """Return the facts that a policy reads from the context."""
    nodes = list(_nodes(policy.get("conditions", [])))
    read = {
        node[operator]["attr"]
        for node in nodes
        for operator in (".", "has")
        if isinstance(node.get(operator), Mapping) and _path(node[operator]["left"]) == ("context",)
    }
    return FACTS_IN_CONTEXT & read


def tools_named(policy: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the tools that a policy is restricted to, as `name` or `server:name`; None if it applies to all."""
    scope = policy["resource"]
    if scope["op"] == "==":
        return frozenset({scope["entity"]["id"]})
    named = {
        value
        for node in _nodes(policy.get("conditions", []))
        for path, value in _equalities(node)
        if path in (("context", "tool"), ("resource", "name")) and isinstance(value, str)
    }
    return frozenset(named) or None


def uses(policy: Mapping[str, Any]) -> Iterator[Use]:
    """Yield how a policy reads the arguments."""
    for node in _nodes(policy.get("conditions", [])):
        for expression, type_ in _typed_operands(node):
            path = _path(expression)
            if path is not None and path[:2] == ("context", "arguments") and len(path) > 2:
                yield Use(path[2:], type_)


def arguments_read(policy: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the top-level arguments that a policy reads, or None if it may read all of them."""
    read: set[str] = set()
    pending: list[Any] = [policy.get("conditions", [])]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(item)
            continue
        if not isinstance(item, Mapping):
            continue
        if _path(item) in (("context",), ("context", "arguments")):
            return None
        for operator, body in item.items():
            base = _path(body["left"]) if operator in (".", "has") else None
            if base == ("context", "arguments"):
                read.add(body["attr"])
            elif base != ("context",):
                pending.append(body)
    return frozenset(read)


def contradiction(use: Use, schema: Mapping[str, Any], *, named: bool) -> str | None:
    """Return why a tool with this input schema is unlikely to send what the policy reads, or None."""
    place = "arguments." + ".".join(use.path)
    current: Mapping[str, Any] = schema
    for key in use.path:
        members = current.get("properties")
        if not isinstance(members, Mapping):
            return None
        if key not in members:
            closed = current.get("additionalProperties") is False
            return f"reads {place}, which the tool does not declare" if named or closed else None
        if not isinstance(members[key], Mapping):
            return None
        current = members[key]
    declared = current.get("type")
    kinds = {declared} if isinstance(declared, str) else set(declared) if isinstance(declared, list) else set()
    if not kinds or use.type not in _ACCEPTS or kinds & _ACCEPTS[use.type]:
        return None
    return f"reads {place} as a {use.type}, but the tool declares {'/'.join(sorted(map(str, kinds)))}"


def _annotation_problems(policy: Mapping[str, Any]) -> Iterator[str]:
    if APPROVAL_ANNOTATION not in policy.get("annotations", {}):
        return
    if not policy["annotations"][APPROVAL_ANNOTATION]:
        yield '@approval names no workflow; write @approval("name")'
    action = policy["action"]
    only = action.get("entity", {}).get("id") if action["op"] in ("==", "in") else None
    if policy["effect"] == "forbid" or only == FORWARD:
        yield f"@approval has no meaning here: it belongs to a permit for {ACTION}::{APPROVE!r}"


def _attribute_problems(node: Mapping[str, Any], more_attributes: bool) -> Iterator[str]:
    for operator in (".", "has"):
        if operator not in node or not isinstance(node[operator], Mapping):
            continue
        base, name = _path(node[operator]["left"]), node[operator]["attr"]
        if base == ("context",) and name not in CONTEXT:
            yield f"context has no {name!r}; it has {', '.join(sorted(CONTEXT))}"
        elif base == ("context", "time") and name not in TIME:
            yield f"context.time has no {name!r}; it has {', '.join(sorted(TIME))}"
        elif base == ("context", "caller") and name not in CALLER_FACTS:
            yield f"context.caller has no {name!r}; it has {', '.join(sorted(CALLER_FACTS))}"
        elif base == ("resource",) and name not in RESOURCE_ATTRIBUTES and not more_attributes:
            yield f"resource has no {name!r}; it has {', '.join(sorted(RESOURCE_ATTRIBUTES))}"
        elif base == ("principal",) and not more_attributes:
            yield f'principal has no {name!r}: callers have roles, written `principal in {ROLE}::"name"`'


def _typed_operands(node: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    for operator, body in node.items():
        if operator in _LONG_OPERATORS:
            yield from ((body[side], "long") for side in ("left", "right"))
        elif operator in ("==", "!="):
            for side, other in (("left", "right"), ("right", "left")):
                yield body[side], _literal_type(body[other])
        elif operator == "like":
            yield body["left"], "string"
        elif operator in _SET_OPERATORS:
            yield body["left"], "set"
        elif operator in _DECIMAL_OPERATORS:
            yield from ((item, "decimal") for item in body)
        elif operator in ("&&", "||"):
            yield from ((body[side], "boolean") for side in ("left", "right"))
        elif operator == "!":
            yield body["arg"], "boolean"


def _literal_type(expression: Mapping[str, Any]) -> str:
    if "decimal" in expression:
        return "decimal"
    value = expression.get("Value")
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "long"
    return "string" if isinstance(value, str) else ""


def _equalities(node: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...] | None, Any]]:
    if "==" in node:
        left, right = node["=="]["left"], node["=="]["right"]
        yield _path(left), right.get("Value")
        yield _path(right), left.get("Value")


def _path(expression: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return `context.arguments.amount` as a tuple, or None for anything that is not a plain path from a variable."""
    if "Var" in expression:
        return (expression["Var"],)
    if "." in expression:
        base = _path(expression["."]["left"])
        return None if base is None else (*base, expression["."]["attr"])
    return None


def _entities(policy: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    for part in ("principal", "action", "resource"):
        scope = policy[part]
        yield from (holder["entity"] for holder in (scope, scope.get("in", {})) if "entity" in holder)
        yield from scope.get("entities", ())
    for node in _nodes(policy.get("conditions", [])):
        value = node.get("Value")
        if isinstance(value, Mapping) and "__entity" in value:
            yield value["__entity"]


def _named_types(policy: Mapping[str, Any]) -> Iterator[str]:
    for part in ("principal", "resource"):
        if "entity_type" in policy[part]:
            yield policy[part]["entity_type"]
    for node in _nodes(policy.get("conditions", [])):
        if isinstance(node.get("is"), Mapping):
            yield node["is"]["entity_type"]


def _nodes(tree: Any) -> Iterator[Mapping[str, Any]]:
    pending = [tree]
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            yield item
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
