"""Charts: readable without a script, to scale, linked within the console only, and safe with hostile labels."""

from __future__ import annotations

import re

import pytest

from taskgate.dashboard.charts.axis import round_top
from taskgate.dashboard.charts.band import latency_band
from taskgate.dashboard.charts.bars import MIN_HEIGHT, histogram, stacked_bars
from taskgate.dashboard.charts.figure import HEIGHT, WIDTH, Column, Series
from taskgate.dashboard.charts.sparkline import sparkline

HOSTILE = '</title><script>alert(1)</script>"onload="x\u202e'
KINDS = (Series("ok", "t-ok"), Series("failed", "t-bad"))


def boxes(drawing: str, tone: str) -> list[tuple[float, float]]:
    """(y, height) of the bars of one tone."""
    paths = re.findall(rf'<path class="{tone}" d="([^"]*)"', drawing)
    return [(float(y), float(h)) for path in paths for y, h in re.findall(r"M[\d.]+ ([\d.]+)h[\d.]+v([\d.]+)h-", path)]


def test_stacked_bars_are_to_scale_and_stand_on_one_another() -> None:
    drawing = stacked_bars("Calls", KINDS, [Column("10:00", (30.0, 10.0)), Column("10:05", (0.0, 40.0))])
    ((_, ok),) = boxes(drawing, "t-ok")
    (top, failed), (_, alone) = boxes(drawing, "t-bad")
    assert ok == pytest.approx(3 * failed, rel=0.02)
    assert alone == pytest.approx(ok + failed, rel=0.02)
    assert top + failed + ok == pytest.approx(HEIGHT)


def test_axis_shows_the_short_label_of_a_column() -> None:
    drawing = histogram("Latency", [Column("up to 64 ms", (3.0,), axis="64 ms")])
    assert '<div class="x" aria-hidden="true"><span>64 ms</span></div>' in drawing
    assert "<title>up to 64 ms: 3 calls</title>" in drawing


def test_one_call_has_a_visible_bar_beside_a_million() -> None:
    drawing = stacked_bars("Calls", KINDS, [Column("10:00", (1e6, 1.0)), Column("10:05", (0.0, 0.0))])
    (y, height) = boxes(drawing, "t-bad")[0]
    assert height >= MIN_HEIGHT
    assert y >= 0
    assert len(boxes(drawing, "t-ok")) == 1, "nothing is drawn for none"


def test_numbers_are_on_hover_and_in_a_table_with_the_same_links() -> None:
    drawing = stacked_bars("Calls", KINDS, [Column("10:00", (30.0, 1.0), "/tasks?since=x&until=y", 0)])
    assert "<title>10:00: 30 ok, 1 failed</title>" in drawing
    table = drawing.partition("<details")[2]
    assert re.findall(r'<td class="n">([^<]*)</td>', table) == ["30", "1"]
    assert drawing.count('href="/tasks?since=x&amp;until=y"') == 2
    assert 'tabindex="-1"' in drawing, "sixty columns are no sixty tab stops: the table has the links"


@pytest.mark.parametrize(
    "address", ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)"]
)
def test_charts_link_within_the_console_only(address: str) -> None:
    drawing = stacked_bars("Calls", KINDS, [Column("10:00", (1.0, 1.0), address)])
    assert "evil" not in drawing
    assert "javascript" not in drawing
    assert 'href="/"' in drawing


def test_hostile_labels_are_escaped() -> None:
    columns = [Column(HOSTILE * 50, (5.0, 1.0), '/tasks?text="onload="x', detail=HOSTILE)]
    band = [Column(HOSTILE, (1.0, 2.0), '/tasks?text="onload="x', 5)]
    for drawing in (
        stacked_bars(HOSTILE, (Series(HOSTILE, "t-ok"), Series("b", "t-bad")), columns, summary=HOSTILE),
        histogram(HOSTILE, [Column(HOSTILE, (5.0,))], label=HOSTILE),
        latency_band(HOSTILE, band, summary=HOSTILE),
        sparkline([1, 2], HOSTILE),
    ):
        assert "<script" not in drawing
        assert '"onload' not in drawing
        assert "\u202e" not in drawing
        assert len(drawing) < 20_000


def test_band_is_interrupted_where_there_were_no_calls() -> None:
    columns = [Column(str(n), (None, None) if n == 2 else (10.0, 40.0)) for n in range(5)]
    drawing = latency_band("Latency", columns)
    assert drawing.count('<path class="line"') == 2
    assert drawing.count('<path class="t-band"') == 2
    assert "<title>2: no calls</title>" in drawing
    single_point = latency_band("Latency", [Column("0", (10.0, 40.0))])
    xs = [float(x) for x in re.findall(r"[ML]([\d.]+) ", re.findall(r'class="line" d="([^"]*)"', single_point)[0])]
    assert max(xs) - min(xs) > WIDTH / 2, "one column of calls is a visible line"


def test_charts_without_numbers_are_drawn() -> None:
    for drawing in (
        stacked_bars("Calls", KINDS, []),
        stacked_bars("Calls", KINDS, [Column("a", (None, None)), Column("b", (0.0, 0.0))]),
        latency_band("Latency", []),
        latency_band("Latency", [Column("a", (None, None))]),
        sparkline([], "none"),
        sparkline([0, 0], "none"),
        sparkline([3], "one"),
    ):
        assert "nan" not in drawing
        assert "inf" not in drawing
        assert "<details" not in drawing


@pytest.mark.parametrize(
    ("largest", "top", "whole"),
    [(0, 1, 2), (0.3, 0.3, 2), (1, 1, 2), (7, 8, 8), (95, 100, 100), (101, 200, 200), (3e9, 3e9, 3e9)],
)
def test_axis_ends_at_a_round_number(largest: float, top: float, whole: float) -> None:
    assert round_top(largest) == pytest.approx(top)
    assert round_top(largest, whole=True) == whole
    assert round_top(float("nan")) == 1
