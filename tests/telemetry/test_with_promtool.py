"""Prometheus' own tool accepts the scrape configuration, the alert rules, the queries of the dashboard and our metrics."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.harness.absent import find_program
from tests.telemetry.test_dashboards_and_alerts import FOLDER, expressions
from tests.virtual_time import Gateway, virtual_time

DEADLINE_S = 60
TESTS_OF_ALERTS = Path(__file__).with_name("alerts.test.yaml")
pytestmark = pytest.mark.peers("promtool")


def promtool(*arguments: str | Path, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(find_program("promtool")), *arguments], input=stdin, capture_output=True, timeout=DEADLINE_S
    )


def test_configuration_and_rules_are_valid() -> None:
    # The file of the token exists in the container only, so files are not looked for.
    done = promtool("check", "config", "--syntax-only", FOLDER / "prometheus.yaml")
    assert done.returncode == 0, done.stderr.decode()
    done = promtool("check", "rules", FOLDER / "prometheus-alerts.yaml")
    assert done.returncode == 0, done.stderr.decode()


def test_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "prometheus-alerts.yaml", tmp_path)
    shutil.copy(TESTS_OF_ALERTS, tmp_path)
    done = promtool("test", "rules", tmp_path / TESTS_OF_ALERTS.name)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    rules = yaml.safe_load((FOLDER / "prometheus-alerts.yaml").read_text())["groups"][0]["rules"]
    (tested,) = yaml.safe_load(TESTS_OF_ALERTS.read_text())["tests"]
    assert {rule["alert"] for rule in rules} == {test["alertname"] for test in tested["alert_rule_test"]}


def test_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    """As recording rules: the tool has no command for a dashboard. Grafana replaces its variables before it sends the query."""
    rules = [
        {"record": f"query_{number}", "expr": text.replace("$__rate_interval", "5m")}
        for number, text in enumerate(expressions())
    ]
    (tmp_path / "queries.yaml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = promtool("check", "rules", tmp_path / "queries.yaml")
    assert done.returncode == 0, done.stderr.decode()
    assert f"{len(rules)} rules found".encode() in done.stdout


@virtual_time
async def test_exported_metrics_are_valid() -> None:
    async with Gateway({}, {}) as gate:
        text = (await gate.http("GET", "/metrics").done()).body
    done = promtool("check", "metrics", stdin=text)
    assert (done.returncode, done.stderr.decode()) == (0, "")
    broken = text + b"# TYPE taskgate_things counter\ntaskgate_things 1\n"
    assert promtool("check", "metrics", stdin=broken).returncode != 0, "the check notices a counter without _total"
