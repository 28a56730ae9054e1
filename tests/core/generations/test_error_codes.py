"""The JSON-RPC code of each error."""

from __future__ import annotations

import json

import pytest

from taskgate.core.errors import CallerError, Executed, UpstreamError
from taskgate.core.generations.error_codes import CODES, code_of, error_data, error_object
from taskgate.core.generations.generation import Generation

RESERVED = range(-32099, -32019)


@pytest.mark.parametrize(("error_type", "code"), CODES.items())
def test_stateless_errors_use_reserved_codes_for_their_meaning_only(error_type: str, code: object) -> None:
    number = code_of(error_type).stateless
    allowed = {"header_mismatch": -32020, "missing_capability": -32021, "unsupported_version": -32022}
    assert number not in RESERVED or allowed.get(error_type) == number


def test_an_error_object_contains_error_type_and_executed() -> None:
    problem = UpstreamError("upstream_timeout", "too long", executed=Executed.MAYBE, gate="g", data={"tool": "t"})
    stateful = json.loads(error_object(problem, Generation.STATEFUL, "c1", Executed.MAYBE))
    assert stateful["code"] == -32001
    assert stateful["data"] == {
        "error_type": "upstream_timeout",
        "gate": "g",
        "correlation_id": "c1",
        "executed": "maybe",
        "legacy_code": -32001,
        "tool": "t",
    }
    assert json.loads(error_object(problem, Generation.STATELESS, "c1", None))["code"] == -32603
    assert "executed" not in json.loads(error_object(problem, Generation.STATELESS, "c1", None))["data"]
    assert "UpstreamError('upstream_timeout'" in repr(problem)


def test_the_older_task_numbers_can_be_put_on_the_stateful_wire() -> None:
    problem = CallerError("task_required", "t")
    assert json.loads(error_object(problem, Generation.STATEFUL, "c", None, seed_task_codes=True))["code"] == -32009
    assert json.loads(error_object(problem, Generation.STATELESS, "c", None, seed_task_codes=True))["code"] == -32601
    assert json.loads(error_object(problem, Generation.STATEFUL, "c", None))["code"] == -32601


def test_an_unknown_kind_is_an_internal_error() -> None:
    assert code_of("no such thing").stateful == -32603


def test_only_kinds_that_had_an_older_number_carry_one() -> None:
    with_one = {kind for kind, code in CODES.items() if code.legacy is not None}
    for kind in CODES:
        data = error_data(CallerError(kind, "x"), "c", Executed.NO)
        assert ("legacy_code" in data) == (kind in with_one)


def test_each_generation_names_the_other() -> None:
    assert [generation.other for generation in Generation] == list(reversed(Generation))
