"""`make quick` excludes exactly the tests that start programs."""

from __future__ import annotations

from pathlib import Path

from tests.harness.reach import reaches_programs

TESTS = Path(__file__).resolve().parent.parent


def test_a_file_that_starts_programs_is_recognised_by_its_imports() -> None:
    assert reaches_programs(TESTS / "conversations" / "test_conversations.py")
    assert reaches_programs(TESTS / "gateway" / "test_lifecycle.py")
    assert reaches_programs(TESTS / "client" / "test_oauth.py")


def test_a_file_that_starts_the_gateway_is_recognised_by_its_command() -> None:
    assert reaches_programs(TESTS / "cli" / "test_client_commands.py")
    assert reaches_programs(TESTS / "config" / "clients" / "test_wrap_command.py")


def test_in_process_tests_are_not_marked() -> None:
    assert not reaches_programs(TESTS / "virtual_time" / "test_virtual_time.py")
    assert not reaches_programs(TESTS / "core" / "test_wire.py")
