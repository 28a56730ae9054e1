"""Usage as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from taskgate.core.usage import OTHERS, UsageRow, summed

MAX_SERIES: Final = 1_000


_FAMILIES: Final = (
    ("taskgate_used_calls", "Calls that reached a server.", "calls", ""),
    ("taskgate_used_errors", "Calls that failed.", "errors", ""),
    ("taskgate_used_seconds", "Total duration of the calls in seconds.", "seconds", ""),
    ("taskgate_used_bytes", "Bytes of arguments (in) and results (out).", "bytes_in", "in"),
    ("taskgate_used_bytes", "", "bytes_out", "out"),
    ("taskgate_used_sampling_cost", "Cost of model calls that answered sampling requests.", "cost", ""),
)


def as_metrics(rows: Iterable[UsageRow], by: tuple[str, ...], maximum: int = MAX_SERIES) -> str:
    """Prometheus text with the grouping as labels. The rows with the most calls get their own labels, up to `maximum`; the rest is
    summed as `(others)`, so that many callers cannot flood the collector.
    """
    ordered = summed(rows, by)
    ordered.sort(key=lambda row: -row.calls)
    kept, rest = ordered[:maximum], ordered[maximum:]
    if rest:
        others = msgspec.structs.replace(rest[0], **dict.fromkeys(by, OTHERS))
        for row in rest[1:]:
            others = others.plus(row)
        kept.append(others)
    lines: list[str] = []
    for name, text, amount, direction in _FAMILIES:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} counter"] if text else []
        more = [("direction", direction)] if direction else []
        for row in kept:
            labels = [*((part, str(getattr(row, part))) for part in by), *more]
            shown = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels)
            lines.append(f"{name}_total{{{shown}}} {getattr(row, amount)}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
