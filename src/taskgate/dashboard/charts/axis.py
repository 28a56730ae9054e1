"""The vertical axis of a chart: a round upper end for the largest value."""

from __future__ import annotations

import math
from typing import Final

_STEPS: Final = (1, 2, 3, 4, 5, 6, 8, 10)


def round_top(largest: float, *, whole: bool = False) -> float:
    """The smallest round number that is not below the largest value: 1, 2, 3, 4, 5, 6 or 8 times a power of ten.

    `whole`: for counts, at least 2, so that the middle of the axis is a whole number.
    """
    if not math.isfinite(largest) or largest <= 0:
        return 2.0 if whole else 1.0
    power = 10.0 ** math.floor(math.log10(largest))
    top = next(step * power for step in _STEPS if step * power >= largest * (1 - 1e-9))
    if not whole:
        return top
    top = max(2.0, math.ceil(top))
    return top if top % 2 == 0 else top + 1
