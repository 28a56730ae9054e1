"""Runs the official conformance suite against a URL and reads the result of each check.

The suite counts WARNING and SKIPPED as green and passes a few scenarios on a server that only answers errors, so we
compare checks, never scenarios: a check with SUCCESS directly must have SUCCESS through the gateway. Used by the
test module and by the command next to it.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.harness.absent import HOME
from tests.harness.node_reuse import NODE_AGAIN

SUITE = HOME / "conformance/node_modules/@modelcontextprotocol/conformance/dist/index.js"
REVISIONS = ("2025-11-25", "2026-07-28")
SUITE_DEADLINE = 900.0
SEVERITY = ("FAILURE", "WARNING", "SKIPPED", "INFO", "SUCCESS")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst result of a check in one scenario, and its reason."""

    status: str
    reason: str = ""


Verdicts = dict[str, Verdict]


async def run_suite(url: str, revision: str) -> Verdicts:
    """Every scenario that the revision requires or reports, as `scenario:check/name -> verdict`."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        words = ["server", "--url", url, "--requirements", revision, "--output-dir", folder]
        _, out, err = await NODE_AGAIN.run(SUITE, words, within=SUITE_DEADLINE)
        verdicts = read_verdicts(Path(folder))
    if not verdicts:
        raise AssertionError(f"the suite reported nothing for {revision} at {url}:\n{(out + err)[-3000:]}")
    return verdicts


def read_verdicts(folder: Path) -> Verdicts:
    verdicts: Verdicts = {}
    for report in sorted(folder.rglob("checks.json")):
        scenario = scenario_of(report.parent.name)
        for check in json.loads(report.read_text()):
            name = f"{scenario}:{check['id']}/{check['name']}"
            found = Verdict(check["status"], check.get("errorMessage") or "")
            verdicts[name] = min(found, verdicts.get(name, found), key=lambda one: SEVERITY.index(one.status))
    return verdicts


def scenario_of(folder: str) -> str:
    """`server-tools-list-2026-11-15T02-53-41-008Z` is a run of `tools-list`."""
    name, _, _ = folder.removeprefix("server-").rpartition("T")
    return name.rsplit("-", 3)[0]


def losses(direct: Verdicts, through: Verdicts) -> dict[str, str]:
    """What the gateway lost: checks that passed directly and do not pass through, and failures that are new.

    INFO means "does not apply" in the suite: a server may answer JSON where another streams.
    """
    lost = {}
    for name, verdict in direct.items():
        now = through.get(name, Verdict("ABSENT"))
        if verdict.status == "SUCCESS" and now.status not in {"SUCCESS", "INFO"}:
            lost[name] = f"{now.status} {now.reason}".strip()
    for name, now in through.items():
        if now.status == "FAILURE" and direct.get(name, Verdict("ABSENT")).status in {"ABSENT", "INFO", "SKIPPED"}:
            lost[name] = f"FAILURE {now.reason}"
    return lost


def failures(verdicts: Verdicts) -> dict[str, str]:
    return {name: verdict.reason for name, verdict in verdicts.items() if verdict.status == "FAILURE"}


def scenarios(verdicts: Verdicts) -> dict[str, bool]:
    """Whether each scenario passed, as the suite counts: nothing FAILURE, and something SUCCESS or SKIPPED by the suite itself."""
    found: dict[str, set[str]] = {}
    for name, verdict in verdicts.items():
        found.setdefault(name.split(":")[0], set()).add(verdict.status)
    return {name: bool({"SUCCESS", "SKIPPED"} & text) and "FAILURE" not in text for name, text in found.items()}


def tasks_passed(verdicts: Verdicts) -> list[str]:
    """The scenarios of the tasks extension that passed. The suite has ten; one of them it always skips, and it scores none."""
    return sorted(name for name, passed in scenarios(verdicts).items() if passed and name.startswith("tasks-"))


def count(verdicts: Verdicts) -> str:
    checks = sum(verdict.status == "SUCCESS" for verdict in verdicts.values())
    ours = {name: passed for name, passed in scenarios(verdicts).items() if not name.startswith("tasks-")}
    tasks = [name for name in scenarios(verdicts) if name.startswith("tasks-")]
    reported = f", tasks {len(tasks_passed(verdicts))} of {len(tasks)}" if tasks else ""
    return f"{sum(ours.values())} of {len(ours)} scenarios{reported}, {checks} checks passed, {len(failures(verdicts))} failed"
