"""The `history` section: how long finished calls can be searched, and what is kept of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from taskgate.config.model.values import Duration
from taskgate.config.sections import Field, Section


class History(Section):
    """Rows about calls that have ended, to be searched in the console and with `taskgate history`."""

    keep: Duration = Field(default=timedelta(days=7), description="How long rows are kept. `0` keeps none.")
    max_rows: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        default=200_000,
        description="Maximum number of rows. Beyond it, the caller with the most rows loses its oldest ones first.",
    )
    sample: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=20,
        description="Successful plain calls per second that leave a row. Tasks, and calls that were denied, failed, asked a "
        "question or took longer than 2 s, always leave one.",
    )
    content: bool = Field(
        default=False,
        description="Keep arguments and results of tasks with their rows, up to 16 KiB each, redacted like approvals.",
    )
