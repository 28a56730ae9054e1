"""Runs `taskgate ARGUMENTS...` with the product's fixed times of retention cut to seconds, so that ten minutes show all of them.

A task is shown as expired for 20 seconds instead of an hour, and events and idempotency keys are kept for 40 seconds.
"""

from __future__ import annotations

from unittest import mock

from taskgate.cli.main import main
from taskgate.store import state
from taskgate.store.operations import task_queries, tasks, upkeep

if __name__ == "__main__":
    # By their names in the modules that read them; an attribute that does not exist is an error.
    with (
        mock.patch.object(upkeep, "SHOWN_AS_EXPIRED_MS", 20_000),
        mock.patch.object(upkeep, "KEY_VALID_MS", 40_000),
        mock.patch.object(tasks, "KEY_VALID_MS", 40_000),
        mock.patch.object(task_queries, "KEY_VALID_MS", 40_000),
        mock.patch.object(state, "KEPT_EVENTS_MS", 40_000),
    ):
        main()
