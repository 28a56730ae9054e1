"""Runs every mutant against its tests and prints a table: `python -m tests.mutants.run [WORDS IN NAMES...]`.

The tree is copied, once for each of two workers; a mutant is written into a copy, its tests run until the first failure, and the
line is put back. A mutant is caught only by a failing test: a run that could not even collect its tests proves nothing. First
all tests named in the list run on the untouched copy, because a test that always fails would catch everything.
"""

from __future__ import annotations

import ast
import itertools
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant_list import LEFT_OUT_MARK, ROOT, Mutant, NotFound, Source, mutants, mutated

WORKERS = int(os.environ.get("WORKERS", "2"))
LIMIT_S = 900
COPIED = ("src", "tests", "examples", "docs", "tools", "pyproject.toml", "README.md", "CONTRIBUTING.md", "Makefile")
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".cache", "*.pyc")
_STAMP = itertools.count(int(time.time()) - 10_000_000, 10)
"""Compiled modules are distinguished by the second in which their source changed: each change gets a second of its own."""


_ENDED = {0: "all its tests pass", 1: "no end in time", 5: "none of its tests was run"}


@dataclass(frozen=True, slots=True)
class Verdict:
    mutant: Mutant
    where: str
    caught: bool
    by: str
    seconds: float


def copy_tree(target: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=LEFT_OUT, symlinks=True)
        elif source.exists():
            shutil.copy2(source, target / name)
    return target


def run_tests(tree: Path, tests: tuple[str, ...], *more: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "--no-header", "-n", "0", *more]
    command += ["-m", f"not {LEFT_OUT_MARK}", *tests]
    env = {**os.environ, "PYTHONPATH": str(tree / "src")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        ended = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return 1, ""
    return ended.returncode, ended.stdout + ended.stderr


def write(file: Path, text: str) -> None:
    file.write_text(text)
    changed = next(_STAMP)
    os.utime(file, (changed, changed))


def try_one(tree: Path, source: Source, mutant: Mutant) -> Verdict:
    place = source.find(mutant)
    whole = place.file.read_text()
    changed = mutated(whole, mutant, place.line)
    where = f"{place.file.relative_to(tree / 'src' / 'taskgate')}:{place.line + 1}"
    if place.file.suffix == ".py":
        ast.parse(changed)
    began = time.monotonic()
    write(place.file, changed)
    try:
        code, output = run_tests(tree, mutant.tests, "-x")
    finally:
        write(place.file, whole)
    by = _first_failure(output) or _ENDED.get(code, f"pytest ended with {code}")
    return Verdict(mutant, where, code == 1, by, time.monotonic() - began)


def _first_failure(expected_text: str) -> str:
    failed = [line for line in expected_text.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
    return failed[0].split(" ", 1)[1].split(" - ")[0] if failed else ""


def _work(tree: Path, waiting: queue.SimpleQueue[Mutant], done: list[Verdict]) -> None:
    source = Source(tree)
    while True:
        try:
            mutant = waiting.get_nowait()
        except queue.Empty:
            return
        verdict = try_one(tree, source, mutant)
        done.append(verdict)
        print(_row(verdict), flush=True)


def _row(verdict: Verdict) -> str:
    what = "caught  " if verdict.caught else "SURVIVED"
    return f"{what} {verdict.seconds:5.1f} s  {verdict.mutant.name:<44} {verdict.where:<44} {verdict.by}"


def main(words: list[str]) -> int:
    chosen = [mutant for mutant in mutants() if not words or any(word in mutant.name for word in words)]
    if not chosen:
        print(f"No mutant has a name with {' or '.join(words)} in it. The names are in tests/mutants/mutants.yaml.")
        return 1
    here = Source(ROOT)
    try:
        for mutant in chosen:
            here.find(mutant)
    except NotFound as problem:
        print(problem)
        return 1
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [copy_tree(Path(folder) / str(number)) for number in range(WORKERS)]
        code, output = run_tests(trees[0], tuple(sorted({test for mutant in chosen for test in mutant.tests})), "-x")
        if code != 0:
            print(
                f"The tests fail without any mutant (pytest ended with {code}), so they can catch none:\n{output[-3000:]}"
            )
            return 1
        done = _try_all(trees, chosen)
    survived = [verdict.mutant.name for verdict in done if not verdict.caught]
    print(
        f"{len(done) - len(survived)} of {len(chosen)} mutants caught."
        + "".join(f"\n  survived: {n}" for n in survived)
    )
    return 1 if survived or len(done) != len(chosen) else 0


def _try_all(trees: list[Path], chosen: list[Mutant]) -> list[Verdict]:
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in chosen:
        waiting.put(mutant)
    done: list[Verdict] = []
    workers = [threading.Thread(target=_work, args=(tree, waiting, done)) for tree in trees]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return done


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
