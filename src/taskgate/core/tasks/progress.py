"""The progress reports of a task that its timeline shows: a bounded number of them, spread over the whole run."""

from __future__ import annotations

from typing import Final

from taskgate.core.tasks.task import ProgressStep

MAX_STEPS: Final = 12
LONGEST_MESSAGE: Final = 80


def with_progress(steps: tuple[ProgressStep, ...], step: ProgressStep) -> tuple[ProgressStep, ...]:
    """Append a report that differs from the last one. At the limit one is dropped that was close to its neighbours, never the
    first."""
    step = ProgressStep(step.at_ms, step.progress, step.total, step.message[:LONGEST_MESSAGE])
    if steps and (steps[-1].progress, steps[-1].message) == (step.progress, step.message):
        return steps
    steps = (*steps, step)
    if len(steps) <= MAX_STEPS:
        return steps
    dropped = min(range(1, MAX_STEPS), key=lambda place: steps[place + 1].at_ms - steps[place - 1].at_ms)
    return steps[:dropped] + steps[dropped + 1 :]
