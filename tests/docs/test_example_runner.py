"""The runner of examples notices an example that does not do what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.blocks import Block
from tests.docs.sandbox import Sandbox
from tests.docs.test_examples import loaded, run_python


def block(language: str, body: str, marker: str = "") -> Block:
    return Block("a.md", 1, language, body, marker)


@pytest.fixture
def place(tmp_path: Path) -> Sandbox:
    return Sandbox("a.md", tmp_path, "127.0.0.1:1", "")


@pytest.mark.parametrize(
    "body", ["$ echo one\ntwo\n", "$ false\n", "$ true\n$ no-such-program\n", "$ make nothing-of-ours\n", "one\n"]
)
def test_a_console_example_fails_if_its_command_fails_or_prints_something_else(place: Sandbox, body: str) -> None:
    with pytest.raises(AssertionError, match=r"a\.md:1"):
        place.run(block("console", body))


def test_ids_times_and_numbers_may_differ_and_ids_are_followed(place: Sandbox) -> None:
    place.run(
        block(
            "console", "$ echo 3.5 s tg_0123456789 at 2026-01-01 10:00:00\n1 s tg_abcdefghij at 2020-02-02 01:01:01\n"
        )
    )
    place.run(block("console", "$ test tg_abcdefghij = tg_0123456789\n"))
    place.run(block("console", "$ exit 4\n", "exit 4"))


def test_a_python_example_fails_if_it_raises(place: Sandbox) -> None:
    run_python(block("python", "import asyncio\nasyncio.run(asyncio.sleep(0))\n"), place)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_python(block("python", "1 / 0\n"), place)


def test_a_configuration_with_an_unknown_key_fails(place: Sandbox) -> None:
    loaded(block("yaml", "limits: {sessions: 5}\n"), place)
    with pytest.raises(Exception, match="sesions"):
        loaded(block("yaml", "limits: {sesions: 5}\n"), place)


def test_what_is_not_run_needs_a_reason() -> None:
    assert block("console", "", "not run, it needs root").not_run == "it needs root"
    assert block("console", "", "not run").not_run is None
    assert block("console", "", "not run, why").not_run is None
