"""All of the fault matrix: `python -m tests.faults.run [WHICH ...] [--every N]`. Prints the number of cases and the failures.

WHICH is a generation, a transport and a way of calling, or the beginning of that: `2025`, `2026/http`, `2025/http/promoted`.
With `--every 15` one case of fifteen is run, others in each way of calling. Use an odd number: faults with and without an
execution alternate.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from tests.faults import child_matrix
from tests.faults.child_matrix import ChildMatrixRun
from tests.faults.matrix import ALL_STATUSES, BODIES, SHORT_STATUSES, WAYS, Case, MatrixRun, faults
from tests.virtual_time import run

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


def over_http(generation: str, way: str, some: slice) -> tuple[int, list[str]]:
    every, wrong = list(cases(generation))[some], list[str]()
    for first in range(0, len(every), PER_GATEWAY):
        matrix_run = MatrixRun(generation, way, every[first : first + PER_GATEWAY])
        wrong += run(matrix_run.run)
    return len(every), wrong


def over_stdio(generation: str, way: str, some: slice) -> tuple[int, list[str]]:
    every = list(child_matrix.cases(generation))[some]
    with tempfile.TemporaryDirectory() as folder:
        return len(every), run(ChildMatrixRun(generation, way, every, Path(folder)).run)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("which", nargs="*", default=[""])
    parser.add_argument("--every", type=int, default=1)
    asked = parser.parse_args()
    wrong, count, began = list[str](), 0, time.monotonic()
    ways = [(transport, walk, way) for transport, (walk, ways) in WALKS.items() for way in ways]
    for generation, (transport, walk, way) in product(("2025", "2026"), ways):
        which = f"{generation}/{transport}/{way}"
        if not which.startswith(tuple(asked.which)):
            continue
        with contextlib.redirect_stderr(io.StringIO()):
            number, found = walk(
                generation, way, slice(ways.index((transport, walk, way)) % asked.every, None, asked.every)
            )
        count += number
        wrong += [f"{which}: {line}" for line in found]
        print(f"{which}: {number} cases, {len(found)} wrong", flush=True)
    for line in wrong[:100]:
        print(line)
    print(f"{count} cases in {time.monotonic() - began:.0f} s: {len(wrong)} wrong")
    return 1 if wrong else 0


WALKS = {"http": (over_http, WAYS), "stdio": (over_stdio, child_matrix.WAYS)}

if __name__ == "__main__":
    sys.exit(main())
