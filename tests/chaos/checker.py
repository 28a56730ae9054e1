"""Compares what callers were promised and told with what the ledger says really happened. Pure: it only reads records.

`complaints` is empty for a gateway that kept its word. `test_random_kills.py` shows that it is not empty for gateways that do
not: a checker counts only after it has failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.stage import Execution

MAX_ATTEMPTS = 3
TWICE = "but may run once"
ANSWER_TRAVELS_S = 2.0
"""An answer that left the upstream longer ago than this had arrived and should have been written down."""


@dataclass(slots=True)
class Promise:
    """One call, and everything its caller was told about it."""

    call: str
    tool: str
    kind: str
    made: float
    task_id: str | None = None
    """Set once a task id was acknowledged: from then on the gateway owes an ending."""
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
    promises: Sequence[Promise], ledger: Mapping[str, Sequence[Execution]], kills: Sequence[float]
) -> list[str]:
    found: list[str] = []
    for promise in promises:
        runs = ledger.get(promise.call, ())
        found += [f"{promise.kind} {promise.tool} {promise.call}: {text}" for text in _about(promise, runs, kills)]
    return found


def _about(promise: Promise, runs: Sequence[Execution], kills: Sequence[float]) -> list[str]:
    found = []
    if promise.once and len(runs) > 1:
        found.append(f"ran {len(runs)} times {TWICE}")
    if len(runs) > MAX_ATTEMPTS:
        found.append(f"ran {len(runs)} times, more than {MAX_ATTEMPTS} attempts")
    if promise.task_id is not None:
        found += _ending(promise, runs, kills)
    return found


def _ending(promise: Promise, runs: Sequence[Execution], kills: Sequence[float]) -> list[str]:
    if promise.lost is not None:
        return [f"acknowledged as {promise.task_id} and lost: {promise.lost}"]
    if not promise.answers:
        return [f"acknowledged as {promise.task_id} and never ended (last seen {promise.status})"]
    found = []
    if len(set(promise.answers)) > 1:
        found.append(f"its ending changed: {promise.answers}")
    if promise.unknown:
        found += _unknown(promise, runs, kills)
    elif promise.status == "completed":
        if not runs:
            found.append("reported as completed but never ran")
    elif sum(1 for at in kills if at >= promise.made) < MAX_ATTEMPTS:
        found.append(f"failed without need: {promise.answers[0][:300]}")
    return found


def _unknown(promise: Promise, runs: Sequence[Execution], kills: Sequence[float]) -> list[str]:
    """Unknown is honest only for a call that may not be repeated and was out when the gateway died."""
    if not promise.once:
        return ["reported as unknown though it may be repeated"]
    died = [at for at in kills if at >= promise.made]
    if not died:
        return ["reported as unknown though nothing was killed"]
    for run in runs:
        if run.ended is not None and not any(at < run.ended + ANSWER_TRAVELS_S for at in died):
            return ["reported as unknown though its answer had arrived"]
    return []
