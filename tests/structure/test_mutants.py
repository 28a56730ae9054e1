"""The list of mutants matches the code: `make mutants` takes minutes, this test less than a second."""

from __future__ import annotations

import ast
from functools import cache

import pytest
from tests.mutants.mutant_list import LEFT_OUT_MARK, ROOT, Mutant, NotFound, Source, mutants, mutated


@cache
def source() -> Source:
    return Source(ROOT)


def is_run(test: str) -> bool:
    """A file, or `file::name` of a test in it that `make mutants` does not leave out."""
    path, _, name = test.partition("::")
    file = ROOT / path
    if not name or not file.exists():
        return file.exists()
    before, found, _ = file.read_text().partition(f"def {name}(")
    return bool(found) and f"mark.{LEFT_OUT_MARK}" not in before.rpartition("\n\n\n")[2]


def test_each_mutant_finds_its_line_and_its_tests() -> None:
    kept, problems = mutants(), list[str]()
    for mutant in kept:
        try:
            place = source().find(mutant)
        except NotFound as problem:
            problems.append(str(problem))
            continue
        if place.file.suffix == ".py":
            ast.parse(mutated(place.file.read_text(), mutant, place.line))
        problems += [
            f"mutant {mutant.name!r}: {test} is not there, or is never run" for test in mutant.tests if not is_run(test)
        ]
    assert not problems, "\n".join(problems)
    assert len({mutant.name for mutant in kept}) == len(kept) >= 40
    assert all(mutant.before != mutant.after for mutant in kept)


@pytest.mark.parametrize(
    ("test", "run"),
    [
        ("tests/structure/test_mutants.py::test_each_mutant_finds_its_line_and_its_tests", True),
        ("tests/chaos/test_random_kills.py::test_nothing_is_lost_or_run_twice_after_two_hundred_kills", False),
        ("tests/structure/test_mutants.py::test_nothing_of_that_name", False),
        ("tests/structure/no_such_file.py", False),
    ],
)
def test_a_missing_test_of_a_mutant_is_reported(test: str, run: bool) -> None:
    assert is_run(test) is run


@pytest.mark.parametrize("line", ["no such line anywhere", "from __future__ import annotations"])
def test_a_missing_or_ambiguous_line_is_reported_with_the_next_step(line: str) -> None:
    with pytest.raises(NotFound, match=r"Write in tests/mutants/mutants\.yaml"):
        source().find(Mutant("m", line, "pass", (), "because"))
