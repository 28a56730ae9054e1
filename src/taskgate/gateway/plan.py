"""The plan: one configuration, compiled. A reload replaces it as a whole.

A part that needs the plan in force holds the `Live` value and reads `value` each time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from taskgate.core.governance.pipeline import Gates, open_gates
from taskgate.core.governance.unmatched_patterns import PatternUse
from taskgate.core.identity.caller import ANONYMOUS, OPERATOR
from taskgate.core.risk import Risk, effective_risk
from taskgate.core.scoping.profile import Profile
from taskgate.core.scoping.registry import Registry
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.settings.history import History
from taskgate.core.settings.limits import Limits
from taskgate.core.settings.servers import ToolTraits
from taskgate.core.settings.tasks import AnnotationMode, Tasks
from taskgate.core.tool_class import ToolClass, classify_tool
from taskgate.gateway.features import Features
from taskgate.gateway.governing import Governing

T = TypeVar("T")


class Live(Generic[T]):
    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def replace(self, value: T) -> None:
        self.value = value


class Plan(msgspec.Struct, frozen=True):
    revision: int
    registry: Registry
    scopes: Mapping[str, ScopePolicy]
    default_scope: str = "default"
    gates: Gates = msgspec.field(default_factory=open_gates)
    limits: Limits = msgspec.field(default_factory=Limits)
    tasks: Tasks = msgspec.field(default_factory=Tasks)
    trusted: frozenset[str] = frozenset()
    """Servers whose tool annotations are trusted."""
    traits: Mapping[tuple[str, str], ToolTraits] = msgspec.field(default_factory=dict)
    governing: Governing = msgspec.field(default_factory=Governing)
    disabled_scopes: frozenset[str] = frozenset()
    refuse_questions: frozenset[str] = frozenset()
    """Servers whose requests may not wait in an inbox."""
    refuse_sampling: frozenset[str] = frozenset()
    add_server: str | None = None
    """Whether callers may add servers: off, session or on; None where the transport decides."""
    features: Features = msgspec.field(default_factory=Features)
    history: History = msgspec.field(default_factory=History)
    profiles: Mapping[str, Profile] = msgspec.field(default_factory=dict)
    trace_url: str | None = None
    """The address of a trace in the operator's tracing system, with `{trace_id}` in it."""
    patterns: tuple[PatternUse, ...] = ()
    """The patterns of the configuration, to report those that match nothing."""
    temporary_scopes: frozenset[str] = frozenset()
    """Scopes created at run time; each is valid only for its own token."""

    @property
    def prefixes(self) -> dict[str, str]:
        """Return the configured name prefixes by server."""
        return {server: record.namespace for server, record in self.registry.records.items() if record.namespace}

    def has_credential_of(self, principal: str) -> bool:
        """Return whether this principal may still have a credential: whether the configuration or a temporary scope has one.

        They have none for subjects of issuers, for users of this machine, for the operator, and for callers without a token.
        """
        is_elsewhere = principal in (ANONYMOUS, OPERATOR) or any(mark in principal for mark in "#:")
        return is_elsewhere or principal in self.governing.principals or principal in self.temporary_scopes

    def has_helpers(self, scope: str | None) -> bool:
        """Return whether texts for callers of this scope may name the helper tools; None: of all scopes."""
        known = self.scopes.values() if scope is None else [self.scopes[scope]] if scope in self.scopes else []
        return all(policy.has_helpers for policy in known)

    def trace_link(self, trace_id: str | None) -> str | None:
        """The address of this trace; None if the call has none, or if no tracing system is configured."""
        return self.trace_url.replace("{trace_id}", trace_id) if self.trace_url and trace_id else None

    def timeout_of(self, server: str) -> float:
        record = self.registry.records.get(server)
        asked = record.budgets.tool_timeout_ms if record is not None else None
        return asked / 1000 if asked else self.tasks.execution_timeout_ms / 1000

    def plain_timeout_of(self, server: str) -> float:
        """Return the timeout of a plain call; shorter if it can never become a task."""
        off = self.tasks.promote_after_ms == 0 or self.tasks.annotation_mode is AnnotationMode.STRICT
        return (
            min(self.timeout_of(server), self.tasks.sync_forward_timeout_ms / 1000) if off else self.timeout_of(server)
        )

    def risk_of(self, server: str, tool: str, declared: Risk) -> Risk:
        """Return the risk of a tool: what the configuration states, else what its server declares."""
        trait = self.traits.get((server, tool))
        return effective_risk(
            declared, trusted=server in self.trusted, stated=trait.risk if trait is not None else None
        )

    def class_of(self, server: str, tool: str, annotations: Mapping[str, Any]) -> ToolClass:
        trait = self.traits.get((server, tool), ToolTraits())
        return classify_tool(
            override=trait.tool_class,
            trust_annotations=server in self.trusted,
            annotations=annotations,
            key_argument=trait.key_argument,
        )
