"""All of the fault matrix: `python -m tests.faults.run [generation ...]`. Says how many cases there were and what was wrong."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Iterator

from tests.faults.matrix import ALL_STATUSES, BODIES, SHORT_STATUSES, WAYS, Case, Stage, faults
from tests.seam import run

PER_GATEWAY = 400


def cases(generation: str) -> Iterator[Case]:
    """Every status with and without an answer, and the usual ones with every body; each round, class and number of faults."""
    kinds = [
        *faults(ALL_STATUSES, ("nothing", "error without id", "error with our id")),
        *faults(SHORT_STATUSES, BODIES),
    ]
    for fault in dict.fromkeys(kinds):
        for number in (1, 2) if generation == "2026" else (1,):
            for tool in ("once", "read"):
                for sends in (1, 99):
                    if sends == 99 or not fault.is_answer:
                        yield Case(fault, tool, number, sends)


def main() -> int:
    wrong, count, began = list[str](), 0, time.monotonic()
    for generation in sys.argv[1:] or ("2025", "2026"):
        every = list(cases(generation))
        for way in WAYS:
            for first in range(0, len(every), PER_GATEWAY):
                part = every[first : first + PER_GATEWAY]
                stage = Stage(generation, way, part)
                with contextlib.redirect_stderr(io.StringIO()):
                    wrong += [f"{generation}: {line}" for line in run(stage.run)]
                count += len(part)
            print(f"{generation} {way}: {len(every)} cases, {len(wrong)} wrong so far", flush=True)
    for line in wrong[:100]:
        print(line)
    print(f"{count} cases in {time.monotonic() - began:.0f} s: {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
