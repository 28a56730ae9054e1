"""Which questions may be sent to which client, and the format of a question in a stateless result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskgate.core.questions.capabilities import can_answer, with_models
from taskgate.core.questions.question import (
    CANCELLED,
    ELICIT,
    ROOTS,
    SAMPLE,
    Answer,
    Question,
    accepted,
    bare_params,
    no_list_form,
    not_supported,
    unanswered,
    without_related_task,
)
from taskgate.core.wire import Raw


@pytest.mark.parametrize(
    ("capabilities", "method", "params", "able"),
    [
        ({}, ROOTS, {}, False),
        ({"roots": {}}, ROOTS, {}, True),
        ({}, SAMPLE, {}, False),
        ({"sampling": {}}, SAMPLE, {}, True),
        ({"sampling": {}}, SAMPLE, {"tools": []}, False),
        ({"sampling": {"tools": {}}}, SAMPLE, {"tools": []}, True),
        ({}, ELICIT, {}, False),
        ({"elicitation": {}}, ELICIT, {}, True),
        ({"elicitation": {"form": {}}}, ELICIT, {"mode": "form"}, True),
        ({"elicitation": {"url": {}}}, ELICIT, {}, False),
        ({"elicitation": {}}, ELICIT, {"mode": "url"}, False),
        ({"elicitation": {"url": {}}}, ELICIT, {"mode": "url"}, True),
    ],
)
def test_a_caller_gets_only_questions_that_it_declared(
    capabilities: dict[str, Any], method: str, params: dict[str, Any], able: bool
) -> None:
    assert can_answer(capabilities, method, params) is able


def test_plain_params_lose_fields_of_the_other_generation() -> None:
    params = Raw(b'{"message":"m","_meta":{"x":1},"task":{},"elicitationId":"e"}')
    assert json.loads(bytes(bare_params(params, drop=("elicitationId",)))) == {"message": "m"}
    assert bytes(bare_params(None)) == b"{}"


def test_any_question_decodes_to_an_object() -> None:
    assert Question(ELICIT, Raw(b'{"a":1}'), "s").decoded() == {"a": 1}
    assert Question(ELICIT, Raw(b"[]"), "s").decoded() == {}
    assert Question(ELICIT, None, "s").decoded() == {}


def test_an_unsupported_question_is_an_error() -> None:
    assert json.loads(not_supported(SAMPLE).error or b"{}")["code"] == -32600


def test_an_unanswered_question_is_cancelled_if_possible_and_otherwise_an_error() -> None:
    assert json.loads(unanswered(ELICIT).result or b"{}") == {"action": "cancel"}
    assert json.loads(unanswered(ROOTS).error or b"{}")["code"] == -32603


def test_a_related_task_can_be_removed() -> None:
    params = Raw(b'{"_meta":{"k":1,"z":2}}')
    assert json.loads(bytes(without_related_task(params, "k"))) == {"_meta": {"z": 2}}


def test_a_model_that_answers_is_declared_once() -> None:
    assert with_models({}) == {"sampling": {"tools": {}}}
    able = {"sampling": {"tools": {}, "x": 1}}
    assert with_models(able) is able


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        (ELICIT, b'{"mode":"url"}', True),
        (ELICIT, b'{"mode":"form"}', False),
        (ELICIT, b"{}", False),
        (ELICIT, None, False),
        (SAMPLE, b'{"mode":"url"}', False),
    ],
)
def test_only_an_elicitation_in_url_mode_has_a_url(method: str, params: bytes | None, expected: bool) -> None:
    assert Question(method, Raw(params) if params is not None else None, "docs").is_url is expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(result=b'{"action":"accept"}'), True),
        (Answer(result=b'{"action":"decline"}'), False),
        (Answer(result=b"[]"), False),
        (CANCELLED, False),
        (Answer(error=b"{}"), False),
    ],
)
def test_only_an_explicit_acceptance_counts(answer: Answer, expected: bool) -> None:
    assert accepted(answer) is expected


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [(ELICIT, b'{"elicitations":[]}', True), (ELICIT, b'{"elicitations":1}', False), (SAMPLE, b"{}", False)],
)
def test_a_list_of_elicitations_is_distinguished_from_a_form(method: str, params: bytes, expected: bool) -> None:
    assert Question(method, Raw(params), "docs").is_list is expected
    assert b"-32602" in (no_list_form().error or b"")
