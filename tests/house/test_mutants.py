"""The kept list of mutants fits the code: `make mutants` itself takes minutes, this a moment."""

from __future__ import annotations

import ast

import pytest
from tests.mutants.kept_list import ROOT, Mutant, NotFound, Source, mutants, mutated


def exists(test: str) -> bool:
    """A file, or `file::name` of a test in it."""
    path, _, name = test.partition("::")
    file = ROOT / path
    return file.exists() and (not name or f"def {name}(" in file.read_text())


def test_each_mutant_finds_its_line_and_its_tests() -> None:
    kept, source, problems = mutants(), Source(ROOT), list[str]()
    for mutant in kept:
        try:
            place = source.find(mutant)
        except NotFound as problem:
            problems.append(str(problem))
            continue
        if place.file.suffix == ".py":
            ast.parse(mutated(place.file.read_text(), mutant, place.line))
        problems += [f"mutant {mutant.name!r}: there is no {test}" for test in mutant.tests if not exists(test)]
    assert not problems, "\n".join(problems)
    assert len({mutant.name for mutant in kept}) == len(kept) >= 40
    assert all(mutant.before != mutant.after for mutant in kept)


@pytest.mark.parametrize("line", ["no such line anywhere", "from __future__ import annotations"])
def test_a_line_that_is_gone_or_not_unique_is_told_with_what_to_do(line: str) -> None:
    with pytest.raises(NotFound, match=r"Write in tests/mutants/mutants\.yaml"):
        Source(ROOT).find(Mutant("m", line, "pass", (), "because"))
