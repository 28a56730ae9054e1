"""The example dashboard and alert rules name only metrics and labels that the gateway has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.virtual_time import Gateway, virtual_time

FOLDER = Path(__file__).parents[2] / "deploy" / "observability"
_NAME = re.compile(r"\btaskgate_\w+")


def expressions() -> list[str]:
    board = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    alerts = yaml.safe_load((FOLDER / "prometheus-alerts.yaml").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return found + [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]


@virtual_time
async def test_every_metric_and_label_of_the_examples_exists() -> None:
    async with Gateway({}, {}) as gate:
        text = (await gate.http("GET", "/metrics").done()).body.decode()
        metrics = gate.life.app.metrics
        known = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
        for item in vars(metrics).values():
            if type(item).__name__ == "Counter":
                known.add(f"{item.name}_total")
            if type(item).__name__ == "Histogram":
                known |= {f"{item.name}_{part}" for part in ("bucket", "sum", "count")}
        labels = {label for item in vars(metrics).values() if hasattr(item, "labels") for label in item.labels}
        labels |= {label for gauge in metrics.gauges for label in gauge.labels} | {"le"}
    for expression in expressions():
        assert set(_NAME.findall(expression)) <= known, expression
        for group in re.findall(r"by \(([^)]*)\)", expression):
            assert {label.strip() for label in group.split(",")} <= labels, expression


def test_every_metric_of_the_examples_is_scraped_from_the_gateway() -> None:
    """The compose file has no collector of OpenTelemetry, so a panel with one of its metrics would stay empty."""
    names = {
        name for expression in expressions() for name in re.findall(r"\b\w+_(?:bucket|total|seconds)\b", expression)
    }
    assert {name for name in names if not name.startswith("taskgate_")} == set()


def test_the_checker_detects_an_unknown_metric() -> None:
    assert _NAME.findall('rate(taskgate_nothing_total{a="b"}[5m])') == ["taskgate_nothing_total"]
    assert len(expressions()) > 15


@pytest.mark.parametrize("expression", expressions())
def test_brackets_are_balanced(expression: str) -> None:
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)


def test_every_alert_has_a_next_step() -> None:
    alerts = yaml.safe_load((FOLDER / "prometheus-alerts.yaml").read_text())
    for rule in alerts["groups"][0]["rules"]:
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["action"]
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = json.loads((FOLDER / "grafana-dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
