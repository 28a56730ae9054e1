"""The `tasks` section: when a call becomes a task, how long tasks are kept, and polling intervals."""

from __future__ import annotations

from typing import Literal

from taskgate.config.model.values import Milliseconds, Strings
from taskgate.config.sections import Field, Section, model_validator


class Tasks(Section):
    """When a call becomes a task, how long tasks are kept, and how often callers poll."""

    default_ttl_ms: Milliseconds = Field(
        default=600_000, ge=1, description="How long a task is kept when the caller gives no ttl."
    )
    max_ttl_ms: Milliseconds = Field(default=86_400_000, ge=1, description="Longest ttl that a caller may request.")
    keep_result_ms: Milliseconds = Field(
        default=300_000,
        ge=1,
        description="Minimum time that a result can be read after its task ended, even with a shorter ttl.",
    )
    grace_ms: Milliseconds = Field(
        default=8_000, description="2026-07-28 callers: how long to wait for the result before returning a task handle."
    )
    promote_after_ms: Milliseconds = Field(
        default=45_000, description="Convert a plain call to a task after this time. 0 disables promotion."
    )
    promote_latest_ms: Milliseconds = Field(
        default=50_000,
        description="The time in which the program of a server starts does not count for `promote_after_ms`, `hold_ms` and "
        "`grace_ms`, but a call becomes a task at the latest this long after it arrived, or after those times if they are longer.",
    )
    hold_ms: Milliseconds = Field(
        default=300_000,
        description="Like `promote_after_ms`, for clients that reset their timeout on progress notifications.",
    )
    heartbeat_ms: Milliseconds = Field(
        default=15_000, ge=100, description="Interval of progress notifications while a call is held open."
    )
    clients: Strings = Field(
        default=(),
        description='Further client names (globs) that reset their timeout on progress, for example `["my-agent*"]`.',
    )
    annotation_mode: Literal["auto", "strict", "dual"] = Field(
        default="auto",
        description="The `taskSupport` that tools declare. `auto`: depends on the caller; `strict`: computed from rules and "
        "server, the same for all callers; `dual`: `optional` for all.",
    )
    execute_on: Literal["demand", "approval", "result"] = Field(
        default="demand",
        description="When an approved task runs. `demand`: when its caller next reads the task; `approval`: at once; `result`: "
        "when the result is requested.",
    )
    poll_interval_ms: Milliseconds = Field(
        default=1_000, ge=100, description="Polling interval that is recommended to callers. Rises with load."
    )
    approval_poll_interval_ms: Milliseconds = Field(
        default=15_000, ge=100, description="Polling interval that is recommended while a task waits for approval."
    )
    execution_timeout_ms: Milliseconds = Field(
        default=600_000, ge=1, description="Longest run of a task. `servers.NAME.budgets.tool_timeout_ms` overrides it."
    )
    sync_forward_timeout_ms: Milliseconds = Field(
        default=60_000,
        ge=1,
        description="Longest plain call when promotion is disabled or `annotation_mode` is `strict`.",
    )
    tool_face_default_ttl_ms: Milliseconds = Field(
        default=300_000, ge=1, description="`default_ttl_ms` for tasks that `execute_tool` creates."
    )
    tool_face_max_ttl_ms: Milliseconds = Field(
        default=1_800_000, ge=1, description="`max_ttl_ms` for tasks that `execute_tool` creates."
    )
    sweep_interval_ms: Milliseconds = Field(
        default=60_000,
        ge=100,
        description="Interval at which expired data is deleted.",
    )

    @model_validator
    def _default_within_max(self) -> Tasks:
        if self.default_ttl_ms > self.max_ttl_ms:
            raise ValueError("default_ttl_ms is larger than max_ttl_ms; lower it, or raise max_ttl_ms")
        if self.tool_face_default_ttl_ms > self.tool_face_max_ttl_ms:
            raise ValueError(
                "tool_face_default_ttl_ms is larger than tool_face_max_ttl_ms; lower it, or raise tool_face_max_ttl_ms"
            )
        return self
