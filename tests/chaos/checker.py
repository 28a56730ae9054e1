"""Compares the replies that callers received with the executions in the ledger. Pure: it only reads records.

`complaints` is empty for a correct gateway. `test_random_kills.py` shows that it is not empty for gateways that do
not: a checker counts only after it has failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.crash_setup import Execution

MAX_ATTEMPTS = 3
TWICE = "but may run once"
ANSWER_TRAVELS_S = 2.0
"""An answer that left the upstream longer ago than this had arrived and should have been written down."""


@dataclass(slots=True)
class CallReport:
    """One call, and every reply about it that its caller received."""

    call: str
    tool: str
    kind: str
    made: float
    task_id: str | None = None
    """Set once a task id was reported: from then on the task must end."""
    status: str | None = None
    answers: list[str] = field(default_factory=list)
    """The bytes of the ending, one for each time it was read."""
    lost: str | None = None
    """Why a read of an acknowledged task failed, if one did."""

    @property
    def once(self) -> bool:
        return self.tool.startswith("once")

    @property
    def unknown(self) -> bool:
        return bool(self.answers) and "Outcome unknown" in self.answers[0]


def complaints(
    reports: Sequence[CallReport], ledger: Mapping[str, Sequence[Execution]], kills: Sequence[float]
) -> list[str]:
    found: list[str] = []
    for report in reports:
        runs = ledger.get(report.call, ())
        found += [f"{report.kind} {report.tool} {report.call}: {text}" for text in _about(report, runs, kills)]
    return found


def _about(report: CallReport, runs: Sequence[Execution], kills: Sequence[float]) -> list[str]:
    found = []
    if report.once and len(runs) > 1:
        found.append(f"ran {len(runs)} times {TWICE}")
    if len(runs) > MAX_ATTEMPTS:
        found.append(f"ran {len(runs)} times, more than {MAX_ATTEMPTS} attempts")
    if report.task_id is not None:
        found += _ending(report, runs, kills)
    return found


def _ending(report: CallReport, runs: Sequence[Execution], kills: Sequence[float]) -> list[str]:
    if report.lost is not None:
        return [f"acknowledged as {report.task_id} and lost: {report.lost}"]
    if not report.answers:
        return [f"acknowledged as {report.task_id} and never ended (last seen {report.status})"]
    found = []
    if len(set(report.answers)) > 1:
        found.append(f"its ending changed: {report.answers}")
    if report.unknown:
        found += _unknown(report, runs, kills)
    elif report.status == "completed":
        if not runs:
            found.append("reported as completed but never ran")
    elif sum(1 for at in kills if at >= report.made) < MAX_ATTEMPTS:
        found.append(f"failed without need: {report.answers[0][:300]}")
    return found


def _unknown(report: CallReport, runs: Sequence[Execution], kills: Sequence[float]) -> list[str]:
    """Unknown is correct only for a call that was in flight when the gateway was killed: once if it may not be repeated, and at its
    last attempt otherwise."""
    crashed = [at for at in kills if at >= report.made]
    if not report.once and len(crashed) < MAX_ATTEMPTS:
        return ["reported as unknown though it may be repeated"]
    if not crashed:
        return ["reported as unknown though nothing was killed"]
    for run in runs:
        if run.ended is not None and not any(at < run.ended + ANSWER_TRAVELS_S for at in crashed):
            return ["reported as unknown though its answer had arrived"]
    return []
