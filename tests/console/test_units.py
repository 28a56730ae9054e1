"""Durations, sizes, counts and rates as people read them."""

from __future__ import annotations

import pytest

from taskgate.dashboard import units


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (None, "–"),
        (-5, "0 ms"),
        (0.74, "0.7 ms"),
        (320.4, "320 ms"),
        (999.4, "999 ms"),
        (999.6, "1 s"),
        (4_880, "4.9 s"),
        (59_940, "59.9 s"),
        (59_970, "1 min"),
        (95_000, "1 min 35 s"),
        (599_700, "10 min"),
        (3_599_000, "59 min"),
        (7_500_000, "2 h 5 min"),
        (86_400_000, "24 h"),
        (400_000_000, "4 days"),
    ],
)
def test_durations_have_the_unit_that_fits(ms: float | None, shown: str) -> None:
    assert units.duration(ms) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(None, "–"), (0, "0 B"), (999, "999 B"), (1_000, "1 kB"), (1_234_567, "1.2 MB"), (10**16, "10000 TB")],
)
def test_sizes_have_the_unit_that_fits(count: float | None, shown: str) -> None:
    assert units.size(count) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(None, "–"), (7, "7"), (9_994, "9,994"), (9_996, "10k"), (12_440, "12.4k"), (3_100_000, "3.1M"), (2e9, "2G")],
)
def test_counts_are_short(number: float | None, shown: str) -> None:
    assert units.count(number) == shown


def test_rare_calls_do_not_read_as_none() -> None:
    assert [units.rate(value) for value in (None, 12.04, 0.4, 1 / 60, 1 / 3600, 0)] == [
        "–",
        "12/s",
        "0.4/s",
        "1/min",
        "1/h",
        "0/h",
    ]
    assert [units.percent(value) for value in (None, 0, 0.0004, 0.031, 0.9999, 1)] == [
        "–",
        "0%",
        "<0.1%",
        "3.1%",
        "99.9%",
        "100%",
    ]
