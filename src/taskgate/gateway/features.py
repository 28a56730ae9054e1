"""Optional features of the gateway: validation, completion, models, pages, vendor methods. Values only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum

from taskgate.core.catalog.task_card import TaskCard
from taskgate.core.sampling.spending import SpendLimits
from taskgate.ports.model_provider import ModelProvider


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
