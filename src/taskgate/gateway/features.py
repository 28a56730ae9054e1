"""Optional features of the gateway: validation, completion, models, pages, vendor methods. Values only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import field
from enum import StrEnum

from taskgate.core.catalog.task_card import TaskCard
from taskgate.core.sampling.spending import SpendLimits
from taskgate.lazy_dataclass import dataclass
from taskgate.ports.model_provider import ModelProvider


class Validate(StrEnum):
    """What to do with values that do not match a tool's schema."""

    OFF = "off"
    WARN = "warn"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One provider, the spending limit per server, and whether a person reviews requests."""

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
    """Whether plain calls continue although shared records were not confirmed recently."""
    anonymous_tasks_by_session: bool = False
    """`auth.anonymous_tasks: session`."""
    task_card: TaskCard = TaskCard.AUTO
    result_not_ready: bool = False
    """`compat.result_not_ready`."""
    audit_every_call: bool = False
    """`audit.calls: every`."""
    models: tuple[ModelSource, ...] = ()
    model_servers: frozenset[str] = frozenset()
    """Servers whose sampling requests a model may answer."""
    close_models: Callable[[], Awaitable[None]] | None = None
    models_origin: object = field(default=None, repr=False)
    """The configuration of the models, to detect a change at a reload."""
