"""The port of policy engines.

An engine is loaded once per configuration revision and evaluates each call whose rule has `action: policy`. The evaluation is
synchronous and takes some hundred microseconds. It never raises because of the request; a request that cannot be evaluated is
rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from taskgate.core.facts.table import NO_FACTS, Facts
from taskgate.core.governance.pipeline import PolicyAnswer
from taskgate.core.identity.caller import CredentialFacts
from taskgate.core.patterns import PatternKind

_DAY_S = 86_400
_THURSDAY = 4


class PolicyTime(msgspec.Struct, frozen=True):
    """The time of the evaluation, in UTC. Sunday is day 0; `timestamp` is in seconds."""

    hour: int
    day_of_week: int
    timestamp: int

    @classmethod
    def at(cls, timestamp: int) -> PolicyTime:
        """Return hour and day of the week of a timestamp."""
        days, seconds = divmod(timestamp, _DAY_S)
        # The first of January 1970 was a Thursday.
        return cls(seconds // 3_600, (days + _THURSDAY) % 7, timestamp)


class PolicyRequest(msgspec.Struct, frozen=True):
    """One call to be evaluated. `arguments` were parsed strictly (`core.strict_json.parse_strict`)."""

    principal: str
    roles: frozenset[str]
    server: str
    name: str
    arguments: Mapping[str, Any]
    scope: str
    policy_id: str
    time: PolicyTime
    tags: frozenset[str] = frozenset()
    kind: PatternKind = PatternKind.TOOL
    facts: CredentialFacts | None = None
    """Facts from the caller's token; None without a token of an issuer."""
    known: Facts = NO_FACTS
    """What conditions of rules can depend on."""


class PolicyEngine(Protocol):
    """A loaded set of policies."""

    @property
    def revision(self) -> str:
        """A digest of everything that can change a result."""

    def evaluate(self, request: PolicyRequest) -> PolicyAnswer:
        """Evaluate one call. Every failure is a rejection with the cause as its reason."""

    def workflows(self) -> Mapping[str, str]:
        """The approval workflows that policies name, each with its place in the policies."""

    def contradictions(self, server: str, tool: str, input_schema: Mapping[str, Any]) -> tuple[str, ...]:
        """Warnings where a policy expects other arguments than the tool's input schema describes."""
