"""One configuration, compiled: what the gateway works from until the next reload puts another in its place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from taskgate.core.catalog.pin import PinMode
from taskgate.core.catalog.task_card import TaskCard
from taskgate.core.delivery import DeliverySettings
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.pipeline import Gates, open_gates
from taskgate.core.governance.task_annotation import AnnotationMode
from taskgate.core.identity.caller import ANONYMOUS, OPERATOR
from taskgate.core.redaction.fields import NOTHING_HIDDEN, Redaction
from taskgate.core.sampling.spending import SpendLimits
from taskgate.core.scoping.profile import Profile
from taskgate.core.scoping.registry import Registry
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.tool_class import ToolClass, fix_class
from taskgate.ports.approval_store import PendingLimits
from taskgate.ports.model_provider import ModelProvider
from taskgate.ports.policy_engine import PolicyEngine

# One configuration, compiled: what the gateway works from until the next reload puts another plan in its place.
#
# Under which address people reach this gateway: as the operator configured it, else as it listens.
#
# What the operator switched on beyond carrying calls: checking, completion, models that answer, pages, vendor methods.
#
# Values only. `assembly` fills them from the configuration; each use case reads the few that concern it.
#
# A value that may be replaced while the gateway runs, such as the plan in force. Whoever needs it keeps the `Live` and
# reads it.
#
# The one who made it replaces it; everybody else only reads `value`, each time anew.


class Validate(StrEnum):
    """What happens with values that do not fit a tool's schema."""

    OFF = "off"
    WARN = "warn"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One provider, what each server may spend with it, and whether a person looks first."""

    provider: ModelProvider
    limits: SpendLimits
    human_review: bool = False


@dataclass(frozen=True, slots=True)
class Features:
    validate: Validate = Validate.WARN
    learn: bool = True
    vendor_methods: bool = False
    legacy_numbers: bool = False
    """`errors.profile: erlmcp`."""
    urls_per_minute: int = 10
    url_expiry_s: float = 300.0
    loopback_urls: bool = False
    degraded_passthrough: bool = False
    """Plain calls go on although what other gateways may have changed was not confirmed lately."""
    task_card: TaskCard = TaskCard.AUTO
    result_not_ready: bool = False
    """`compat.result_not_ready`."""
    audit_every_call: bool = False
    """`audit.calls: every`."""
    models: tuple[ModelSource, ...] = ()
    model_servers: frozenset[str] = frozenset()
    """Servers whose sampling a model may answer."""
    close_models: Callable[[], Awaitable[None]] | None = None
    models_origin: object = field(default=None, repr=False)
    """What the models were made from, to see whether a reload changed it."""


T = TypeVar("T")


class Live(Generic[T]):
    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def replace(self, value: T) -> None:
        self.value = value


MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    request_bytes: int = 4 * MIB
    result_bytes: int = 16 * MIB
    tools_per_upstream: int = 10_000
    tools_max_pages: int = 100
    tools_fetch_timeout_s: float = 30.0
    list_max_age_s: float = 60.0
    sessions: int = 10_000
    session_idle_s: float = 1800.0
    open_tasks_per_caller: int = 200
    pending_approvals_per_caller: int = 20
    queue_per_server: int = 1000
    runs_per_server: int = 500
    calls_per_caller_per_second: float | None = None
    """Of one caller; None is no limit."""
    burst_per_caller: int = 50
    calls_in_flight: int = 10_000
    pending_questions_per_server: int = 100
    question_timeout_s: float = 600.0
    busy_after_s: float = 0.5
    json_depth: int = 64
    json_nodes: int = 100_000
    stream_buffer_bytes: int = MIB
    stream_buffer_events: int = 256
    events_per_caller: int = 1_000
    events_age_s: float = 1800.0
    timers_per_session: int = 100
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    drain_timeout_s: float = 25.0
    sessions_per_caller: int = 2_500
    anonymous_sessions: int = 5_000
    connections: int = 10_000
    connections_per_address: int = 5_000
    anonymous_pending_approvals: int = 200
    header_count: int = 100
    header_bytes: int = 64 * 1024
    open_tasks_per_tenant: int | None = None
    pending_approvals_per_tenant: int | None = None
    sessions_per_tenant: int | None = None
    calls_per_tenant_per_second: float | None = None
    burst_per_tenant: int = 500
    calls_in_flight_per_caller: int | None = None
    calls_in_flight_per_tenant: int | None = None
    sampling_of_tenant: SpendLimits = field(default_factory=SpendLimits)
    """What models may spend for all callers of one tenant together."""


def pending_limits(limits: Limits) -> PendingLimits:
    """How many approvals may be open."""
    return PendingLimits(
        limits.pending_approvals_per_caller, limits.anonymous_pending_approvals, limits.pending_approvals_per_tenant
    )


class ExecuteOn(StrEnum):
    """What starts a task that waited for an approver."""

    DEMAND = "demand"
    APPROVAL = "approval"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class ToolTrait:
    """What the operator knows about one tool."""

    tool_class: ToolClass | None = None
    key_argument: str | None = None


@dataclass(frozen=True, slots=True)
class CallSettings:
    """How calls are run and delivered where nothing else is said."""

    timeout_s: float = 600.0
    sync_timeout_s: float = 60.0
    annotation_mode: AnnotationMode = AnnotationMode.AUTO
    execute_on: ExecuteOn = ExecuteOn.DEMAND
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    default_ttl_ms: int = 600_000
    max_ttl_ms: int = 86_400_000
    facade_ttl_ms: int = 300_000
    """How long tasks made by the facade's tools are kept: their callers cannot say."""
    keep_result_ms: int = 300_000
    """How long a result can be read from the end of its task on, at the least."""
    seed_task_codes: bool = False
    poll_ms: int = 1_000
    approval_poll_ms: int = 15_000


class Elicits(StrEnum):
    """How the caller itself is shown an approval, where its workflow says so."""

    FORM = "form"
    URL = "url"


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """`governance.record`: which part of the calls is kept, for how long, and what is hidden in them."""

    sample: float
    keep_ms: int
    redaction: Redaction


@dataclass(frozen=True, slots=True)
class KnownToken:
    """A token of the configuration, for whoever looks after them."""

    id: str
    principal: str
    roles: frozenset[str]
    sha256: str = field(repr=False)
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Governing:
    """What governance needs besides the gates: the policies, the people, and what is hidden from them."""

    policy: PolicyEngine | None = None
    approvers: Mapping[str, Approver] = field(default_factory=dict)
    roles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The roles of every principal with a token, for policies."""
    redactions: Mapping[str, Redaction] = field(default_factory=dict)
    elicits: Mapping[str, Elicits] = field(default_factory=dict)
    """Workflows whose question may be shown to the caller itself."""
    grants: bool = True
    longest_grant_ms: int = 3_600_000
    pins: PinMode = PinMode.WARN
    pin_new_tools: bool = False
    """`pins: strict`: a tool never seen before is quarantined too."""
    public_url: str | None = None
    tokens: tuple[KnownToken, ...] = ()
    people: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Each name of somebody who is known by several, with all of them."""
    record: RecordSettings | None = None
    operators_own: frozenset[str] = frozenset()
    """Principals whose person is the operator: those of a local gateway without identities."""

    def owns_account_of(self, who: Approver, principal: str) -> bool:
        """Whether an account that is connected for this principal is this person's own."""
        return self.person(who).owns_account_of(principal, self.operators_own)

    def login_of(self, principal: str) -> str | None:
        """As whom a person logs in who is this principal. Anonymous callers of a gateway with identities have no login."""
        if principal in self.operators_own:
            return OPERATOR
        return principal if principal != ANONYMOUS else None

    def person(self, who: Approver) -> Approver:
        """Somebody with every name they are known by, so that they count once and never decide on their own calls."""
        identities = self.people.get(who.id)
        return who if identities is None else replace(who, identities=identities)

    def redaction(self, workflow: str) -> Redaction:
        return self.redactions.get(workflow, NOTHING_HIDDEN)


@dataclass(frozen=True, slots=True)
class Plan:
    revision: int
    registry: Registry
    scopes: Mapping[str, ScopePolicy]
    default_scope: str = "default"
    gates: Gates = field(default_factory=open_gates)
    limits: Limits = Limits()
    calls: CallSettings = CallSettings()
    trusted: frozenset[str] = frozenset()
    """Servers whose annotations are believed."""
    traits: Mapping[tuple[str, str], ToolTrait] = field(default_factory=dict)
    governing: Governing = field(default_factory=Governing)
    disabled_scopes: frozenset[str] = frozenset()
    refuse_questions: frozenset[str] = frozenset()
    """Servers whose questions may not wait in an inbox."""
    refuse_sampling: frozenset[str] = frozenset()
    add_server: str | None = None
    """Whether callers may add servers: off, session or on; None where the transport decides."""
    features: Features = field(default_factory=Features)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    temporary_scopes: frozenset[str] = frozenset()
    """Those of `scopes` that were handed over at run time; each is only for the bearer of its own token."""

    @property
    def prefixes(self) -> dict[str, str]:
        """What stands in front of the tool names of a server instead of its id."""
        return {server: record.namespace for server, record in self.registry.records.items() if record.namespace}

    def has_helpers(self, scope: str | None) -> bool:
        """Whether a text for callers of this scope may name the tools that follow tasks and answer questions; None: of any."""
        known = self.scopes.values() if scope is None else [self.scopes[scope]] if scope in self.scopes else []
        return all(policy.has_helpers for policy in known)

    def timeout_of(self, server: str) -> float:
        record = self.registry.records.get(server)
        asked = record.budgets.tool_timeout_ms if record is not None else None
        return asked / 1000 if asked else self.calls.timeout_s

    def plain_timeout_of(self, server: str) -> float:
        """How long a plain call may take: bounded more tightly where it can never become a task."""
        off = self.calls.delivery.promote_after_s <= 0 or self.calls.annotation_mode is AnnotationMode.STRICT
        return min(self.timeout_of(server), self.calls.sync_timeout_s) if off else self.timeout_of(server)

    def class_of(self, server: str, tool: str, annotations: Mapping[str, Any]) -> ToolClass:
        trait = self.traits.get((server, tool), ToolTrait())
        return fix_class(
            override=trait.tool_class,
            trust_annotations=server in self.trusted,
            annotations=annotations,
            key_argument=trait.key_argument,
        )


DEFAULT_BASE: Final = "http://127.0.0.1:7467"


class PublicAddress:
    def __init__(self, plan: Live[Plan]) -> None:
        self.plan = plan
        self._listening = DEFAULT_BASE

    def listening_at(self, base_url: str) -> None:
        """The port is known now."""
        self._listening = base_url

    def base(self, plan: Plan | None = None) -> str:
        """For the plan in force, or for one that is about to be."""
        return (plan or self.plan.value).governing.public_url or self._listening

    def approval(self, approval_id: str) -> str:
        return f"{self.base()}/approvals/{approval_id}"

    def task(self, task_id: str) -> str:
        return f"{self.base()}/tasks/{task_id}"

    def elicitation(self, page_id: str) -> str:
        return f"{self.base()}/elicitations/{page_id}"
