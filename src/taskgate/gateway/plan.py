"""The plan: one configuration, compiled. A reload replaces it as a whole.

A part that needs the plan in force holds the `Live` value and reads `value` each time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Generic, TypeVar

from taskgate.core.governance.pipeline import Gates, open_gates
from taskgate.core.governance.task_annotation import AnnotationMode
from taskgate.core.identity.caller import ANONYMOUS, OPERATOR
from taskgate.core.scoping.profile import Profile
from taskgate.core.scoping.registry import Registry
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.tool_class import ToolClass, classify_tool
from taskgate.gateway.call_settings import CallSettings, ToolTrait
from taskgate.gateway.features import Features
from taskgate.gateway.governing import Governing
from taskgate.gateway.limits import Limits
from taskgate.lazy_dataclass import dataclass

T = TypeVar("T")


class Live(Generic[T]):
    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def replace(self, value: T) -> None:
        self.value = value


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """The `history` section: how many rows of ended calls are kept, and for how long."""

    keep_ms: int = 7 * 86_400_000
    """0 keeps none."""
    max_rows: int = 200_000
    sample: int = 20
    """Successful plain calls per second that leave a row."""
    content: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    revision: int
    registry: Registry
    scopes: Mapping[str, ScopePolicy]
    default_scope: str = "default"
    gates: Gates = field(default_factory=open_gates)
    limits: Limits = field(default_factory=Limits)
    calls: CallSettings = field(default_factory=CallSettings)
    trusted: frozenset[str] = frozenset()
    """Servers whose tool annotations are trusted."""
    traits: Mapping[tuple[str, str], ToolTrait] = field(default_factory=dict)
    governing: Governing = field(default_factory=Governing)
    disabled_scopes: frozenset[str] = frozenset()
    refuse_questions: frozenset[str] = frozenset()
    """Servers whose requests may not wait in an inbox."""
    refuse_sampling: frozenset[str] = frozenset()
    add_server: str | None = None
    """Whether callers may add servers: off, session or on; None where the transport decides."""
    features: Features = field(default_factory=Features)
    history: HistorySettings = field(default_factory=HistorySettings)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    trace_url: str | None = None
    """The address of a trace in the operator's tracing system, with `{trace_id}` in it."""
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
        return asked / 1000 if asked else self.calls.timeout_s

    def plain_timeout_of(self, server: str) -> float:
        """Return the timeout of a plain call; shorter if it can never become a task."""
        off = self.calls.delivery.promote_after_s <= 0 or self.calls.annotation_mode is AnnotationMode.STRICT
        return min(self.timeout_of(server), self.calls.sync_timeout_s) if off else self.timeout_of(server)

    def class_of(self, server: str, tool: str, annotations: Mapping[str, Any]) -> ToolClass:
        trait = self.traits.get((server, tool), ToolTrait())
        return classify_tool(
            override=trait.tool_class,
            trust_annotations=server in self.trusted,
            annotations=annotations,
            key_argument=trait.key_argument,
        )
