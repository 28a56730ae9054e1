"""Runs `taskgate ARGUMENTS...` with the product's fixed times of retention cut to seconds, so that ten minutes show all of them.

A task is shown as expired for 20 seconds instead of an hour, and events and idempotency keys are kept for 40 seconds.
"""

from __future__ import annotations

from taskgate.cli.main import main
from taskgate.ports import store_answers
from taskgate.store import transaction
from taskgate.store.operations import tasks, upkeep

if __name__ == "__main__":
    upkeep.SHOWN_AS_EXPIRED_MS = 20_000  # type: ignore[attr-defined]
    upkeep.KEY_VALID_MS = tasks.KEY_VALID_MS = 40_000  # type: ignore[attr-defined, misc]
    transaction.KEPT_EVENTS_MS = store_answers.KEPT_EVENTS_MS = 40_000  # type: ignore[attr-defined, misc]
    main()
