"""Optional features of the gateway: validation, completion, models, pages, vendor methods. Values only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum

import msgspec

from taskgate.core.catalog.task_card import TaskCard
from taskgate.core.settings.providers import SpendLimits
from taskgate.ports.model_provider import ModelProvider
from taskgate.shown_fields import repr_without


class Validate(StrEnum):
    """What to do with values that do not match a tool's schema."""

    OFF = "off"
    WARN = "warn"
    ENFORCE = "enforce"


class ModelSource(msgspec.Struct, frozen=True):
    """One provider, the spending limit per server, and whether a person reviews requests."""

    provider: ModelProvider
    limits: SpendLimits
    human_review: bool = False


class Features(msgspec.Struct, frozen=True):
    validate: Validate = Validate.WARN
    learn: bool = True
    vendor_methods: bool = False
    legacy_numbers: bool = False
    """`errors.profile: erlmcp`."""
    degraded_passthrough: bool = False
    """Whether plain calls continue although shared records were not confirmed recently."""
    anonymous_tasks_by_session: bool = False
    """`auth.anonymous_tasks: session`."""
    task_card: TaskCard = TaskCard.AUTO
    result_not_ready: bool = False
    """`compat.result_not_ready`."""
    audit_every_call: bool = False
    """`audit.calls: every`."""
    seed_task_codes: bool = False
    """`errors.task_codes: seed`."""
    models: tuple[ModelSource, ...] = ()
    model_servers: frozenset[str] = frozenset()
    """Servers whose sampling requests a model may answer."""
    close_models: Callable[[], Awaitable[None]] | None = None
    models_origin: object = None
    """The configuration of the models, to detect a change at a reload."""

    __repr__ = repr_without("models_origin")
