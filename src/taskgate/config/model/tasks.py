"""The `tasks` section: when a call becomes a task, how long tasks are kept, and polling intervals."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from taskgate.config.model.values import Milliseconds, Section, Words


class Tasks(Section):
    """Tasks."""

    default_ttl_ms: Milliseconds = Field(
        default=600_000, ge=1, description="How long a task is kept when the caller does not say."
    )
    max_ttl_ms: Milliseconds = Field(default=86_400_000, ge=1, description="The longest a caller may ask for.")
    keep_result_ms: Milliseconds = Field(
        default=300_000, ge=1, description="How long a result can be read from its end on, however short its ttl was."
    )
    grace_ms: Milliseconds = Field(
        default=8_000, description="2026 callers: how long a reply is inline before it becomes a handle."
    )
    promote_after_ms: Milliseconds = Field(
        default=45_000, description="How long a plain call is held before it becomes a task; 0 switches promotion off."
    )
    hold_ms: Milliseconds = Field(
        default=300_000, description="The same for clients known to reset their timer on progress."
    )
    heartbeat_ms: Milliseconds = Field(
        default=15_000, ge=100, description="Pause between progress messages while a reply is held."
    )
    clients: Words = Field(default=(), description="More names (globs) of clients that reset their timer on progress.")
    annotation_mode: Literal["auto", "strict", "dual"] = Field(
        default="auto",
        description="What taskSupport shows: auto by caller, strict by the matrix for all, dual optional for all.",
    )
    execute_on: Literal["demand", "approval", "result"] = Field(
        default="demand",
        description="When an approved task runs: at its caller's next look at it, at once, or when its result is asked for.",
    )
    poll_interval_ms: Milliseconds = Field(
        default=1_000, ge=100, description="What callers are told to wait between polls; rises with load."
    )
    approval_poll_interval_ms: Milliseconds = Field(
        default=15_000, ge=100, description="The same while a person is being asked."
    )
    execution_timeout_ms: Milliseconds = Field(
        default=600_000, ge=1, description="Longest run of a task whose server sets no budget."
    )
    sync_forward_timeout_ms: Milliseconds = Field(
        default=60_000, ge=1, description="Longest plain call where promotion is off or strict."
    )
    tool_face_default_ttl_ms: Milliseconds = Field(
        default=300_000, ge=1, description="default_ttl_ms of tasks made by execute_tool."
    )
    tool_face_max_ttl_ms: Milliseconds = Field(
        default=1_800_000, ge=1, description="max_ttl_ms of tasks made by execute_tool."
    )
    sweep_interval_ms: Milliseconds = Field(
        default=60_000,
        ge=100,
        description="How often to look for what is past its time; it is then removed in portions until none is left.",
    )

    @model_validator(mode="after")
    def _default_within_max(self) -> Tasks:
        if self.default_ttl_ms > self.max_ttl_ms:
            raise ValueError("default_ttl_ms is larger than max_ttl_ms; raise the one or lower the other")
        if self.tool_face_default_ttl_ms > self.tool_face_max_ttl_ms:
            raise ValueError(
                "tool_face_default_ttl_ms is larger than tool_face_max_ttl_ms; raise the one or lower the other"
            )
        return self
