"""The `history` section: how long finished calls can be searched, and what is kept of them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from taskgate.core.settings.durations import duration
from taskgate.core.settings.section import Section, read_by
from taskgate.core.settings.values import Duration, on_off


class History(Section):
    """Rows about calls that have ended, to be searched in the console and with `taskgate history`."""

    keep: Annotated[Duration, Meta(description="How long rows are kept. `0` keeps none.")] = duration("7d")
    max_rows: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000_000,
            description="Maximum number of rows. Beyond it, the caller with the most rows loses its oldest ones first.",
        ),
    ] = 200_000
    sample: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Successful plain calls per second that leave a row. Tasks, and calls that were denied, failed, "
            "asked a question or took longer than 2 s, always leave one.",
        ),
    ] = 20
    content: Annotated[
        bool,
        Meta(
            description="Keep arguments and results of tasks with their rows, up to 16 KiB each, redacted like approvals."
        ),
    ] = False
    reasons: Annotated[
        Literal["on", "off"],
        read_by(on_off),
        Meta(
            description="Keep the beginning of the error's text with the row of a plain call that failed, redacted like approvals."
        ),
    ] = "on"
