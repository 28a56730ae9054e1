"""The `tasks` section: when a call becomes a task, how long tasks are kept, and polling intervals."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta

from taskgate.core.settings.section import Section
from taskgate.core.settings.values import Milliseconds, Strings


class AnnotationMode(StrEnum):
    """The `taskSupport` that tools declare."""

    AUTO = "auto"
    STRICT = "strict"
    DUAL = "dual"


class Tasks(Section):
    """When a call becomes a task, how long tasks are kept, and how often callers poll."""

    default_ttl_ms: Annotated[
        Milliseconds, Meta(ge=1, description="How long a task is kept when the caller gives no ttl.")
    ] = 600_000
    max_ttl_ms: Annotated[Milliseconds, Meta(ge=1, description="Longest ttl that a caller may request.")] = 86_400_000
    keep_result_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="Minimum time that a result can be read after its task ended, even with a shorter ttl."),
    ] = 300_000
    grace_ms: Annotated[
        Milliseconds,
        Meta(description="2026-07-28 callers: how long to wait for the result before returning a task handle."),
    ] = 8_000
    promote_after_ms: Annotated[
        Milliseconds, Meta(description="Convert a plain call to a task after this time. 0 disables promotion.")
    ] = 45_000
    promote_latest_ms: Annotated[
        Milliseconds,
        Meta(
            description="The time in which the program of a server starts does not count for `promote_after_ms`, `hold_ms` "
            "and `grace_ms`, but a call becomes a task at the latest this long after it arrived, or after those "
            "times if they are longer."
        ),
    ] = 50_000
    hold_ms: Annotated[
        Milliseconds,
        Meta(description="Like `promote_after_ms`, for clients that reset their timeout on progress notifications."),
    ] = 300_000
    heartbeat_ms: Annotated[
        Milliseconds, Meta(ge=100, description="Interval of progress notifications while a call is held open.")
    ] = 15_000
    clients: Annotated[
        Strings,
        Meta(
            description='Further client names (globs) that reset their timeout on progress, for example `["my-agent*"]`.'
        ),
    ] = ()
    annotation_mode: Annotated[
        AnnotationMode,
        Meta(
            description="The `taskSupport` that tools declare. `auto`: depends on the caller; `strict`: computed from rules "
            "and server, the same for all callers; `dual`: `optional` for all."
        ),
    ] = AnnotationMode.AUTO
    execute_on: Annotated[
        Literal["demand", "approval", "result"],
        Meta(
            description="When an approved task runs. `demand`: when its caller next reads the task; `approval`: at once; "
            "`result`: when the result is requested."
        ),
    ] = "demand"
    poll_interval_ms: Annotated[
        Milliseconds, Meta(ge=100, description="Polling interval that is recommended to callers. Rises with load.")
    ] = 1_000
    approval_poll_interval_ms: Annotated[
        Milliseconds, Meta(ge=100, description="Polling interval that is recommended while a task waits for approval.")
    ] = 15_000
    execution_timeout_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="Longest run of a task. `servers.NAME.budgets.tool_timeout_ms` overrides it."),
    ] = 600_000
    sync_forward_timeout_ms: Annotated[
        Milliseconds,
        Meta(ge=1, description="Longest plain call when promotion is disabled or `annotation_mode` is `strict`."),
    ] = 60_000
    tool_face_default_ttl_ms: Annotated[
        Milliseconds, Meta(ge=1, description="`default_ttl_ms` for tasks that `execute_tool` creates.")
    ] = 300_000
    tool_face_max_ttl_ms: Annotated[
        Milliseconds, Meta(ge=1, description="`max_ttl_ms` for tasks that `execute_tool` creates.")
    ] = 1_800_000
    sweep_interval_ms: Annotated[
        Milliseconds, Meta(ge=100, description="Interval at which expired data is deleted.")
    ] = 60_000

    def __post_init__(self) -> None:
        if self.default_ttl_ms > self.max_ttl_ms:
            raise ValueError("default_ttl_ms is larger than max_ttl_ms; lower it, or raise max_ttl_ms")
        if self.tool_face_default_ttl_ms > self.tool_face_max_ttl_ms:
            raise ValueError(
                "tool_face_default_ttl_ms is larger than tool_face_max_ttl_ms; lower it, or raise tool_face_max_ttl_ms"
            )
