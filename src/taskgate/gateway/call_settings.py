"""Defaults for running and delivering calls."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from taskgate.core.delivery import DeliverySettings
from taskgate.core.governance.task_annotation import AnnotationMode
from taskgate.core.tool_class import ToolClass
from taskgate.lazy_dataclass import dataclass


class ExecuteOn(StrEnum):
    """What starts a task that waited for an approver."""

    DEMAND = "demand"
    APPROVAL = "approval"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class ToolTrait:
    """Settings of one tool in the configuration."""

    tool_class: ToolClass | None = None
    key_argument: str | None = None


@dataclass(frozen=True, slots=True)
class CallSettings:
    timeout_s: float = 600.0
    sync_timeout_s: float = 60.0
    annotation_mode: AnnotationMode = AnnotationMode.AUTO
    execute_on: ExecuteOn = ExecuteOn.DEMAND
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    default_ttl_ms: int = 600_000
    max_ttl_ms: int = 86_400_000
    facade_ttl_ms: int = 300_000
    """Retention of tasks created by the facade's tools, whose callers cannot specify one."""
    keep_result_ms: int = 300_000
    """Minimum retention of a result after the end of its task."""
    seed_task_codes: bool = False
    poll_ms: int = 1_000
    approval_poll_ms: int = 15_000
