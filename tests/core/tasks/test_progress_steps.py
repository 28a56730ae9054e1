"""Reports of progress on the timeline: their number is bounded, and they cover the whole run."""

from __future__ import annotations

from itertools import pairwise

import pytest

from taskgate.core.tasks.progress import LONGEST_MESSAGE, MAX_STEPS, with_progress
from taskgate.core.tasks.task import ProgressStep


def test_equal_reports_are_kept_once() -> None:
    first = with_progress((), ProgressStep(1, 0.5, 1.0, "half"))
    assert with_progress(first, ProgressStep(2, 0.5, 1.0, "half")) == first
    assert len(with_progress(first, ProgressStep(2, 0.5, 1.0, "still half"))) == 2


def test_long_messages_are_cut() -> None:
    (step,) = with_progress((), ProgressStep(1, 0.5, None, "x" * 1_000))
    assert step.message == "x" * LONGEST_MESSAGE


@pytest.mark.parametrize("count", [1, 2, 12, 13, 49, 100, 777, 2_000])
def test_first_and_last_report_are_kept_and_the_others_are_spread(count: int) -> None:
    steps: tuple[ProgressStep, ...] = ()
    for number in range(count):
        steps = with_progress(steps, ProgressStep(number, float(number)))
    assert len(steps) <= MAX_STEPS
    assert (steps[0].at_ms, steps[-1].at_ms) == (0, count - 1)
    assert list(steps) == sorted(steps, key=lambda step: step.at_ms)
    if count > 4 * MAX_STEPS:
        gaps = [later.at_ms - earlier.at_ms for earlier, later in pairwise(steps)]
        assert max(gaps) < count / 2
