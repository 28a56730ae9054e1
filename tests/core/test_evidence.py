"""The table of what a reply proves, for every status, body, time, round and class, compared with a server that records its calls.

These combinations are not measured for coverage: the rows listed here must reach every branch by themselves.
"""

from __future__ import annotations

from itertools import product

import pytest
from tests.harness.cpu_time import untraced

from taskgate.core.evidence import Body, Cure, Evidence, FailureVerdict, Moment, failure_verdict
from taskgate.core.tool_class import ToolClass
from taskgate.mcp.failures import REFUSALS, Executed

STATUSES = (None, *range(100, 600))
EVERYTHING = [
    Evidence(moment, status, body, in_session, ping)
    for moment, status, body, in_session, ping in product(Moment, STATUSES, Body, (False, True), (None, False, True))
    if status is not None or moment is not Moment.ANSWERED or body is Body.ANSWER
]
ROUNDS = (1, 2, 7)


def can_have_run(evidence: Evidence) -> bool:
    """What a server that conforms to the table may have executed before the exchange ended like this."""
    if evidence.body is Body.ANSWER:
        return True
    if evidence.moment is Moment.NOT_SENT or evidence.status in REFUSALS:
        return False
    session_is_lost = evidence.status == 400 and evidence.in_session and evidence.ping_refused is True
    return not session_is_lost


def must_have_run(evidence: Evidence) -> bool:
    too_large = evidence.body is Body.TOO_LARGE and (evidence.status is None or 200 <= evidence.status < 300)
    return evidence.body is Body.ANSWER or (too_large and can_have_run(evidence))


@pytest.mark.parametrize("tool_class", ToolClass)
@pytest.mark.parametrize("round_number", ROUNDS)
def test_every_verdict_is_right_for_a_server_that_obeys_the_table(round_number: int, tool_class: ToolClass) -> None:
    """And what may have run is sent again only where the class allows it."""
    earlier = round_number > 1
    with untraced():
        for evidence in EVERYTHING:
            verdict = failure_verdict(evidence, round_number=round_number, tool_class=tool_class)
            can, must = can_have_run(evidence), must_have_run(evidence)
            match verdict.executed:
                case Executed.NO:
                    assert not can, evidence
                    assert not earlier, evidence
                case Executed.YES:
                    assert must, evidence
                case Executed.MAYBE:
                    assert earlier or (can and not must), evidence
            if can and verdict.cure not in (None, Cure.ASK):
                assert verdict.cure is Cure.REPEAT, evidence
                assert tool_class is not ToolClass.ONCE, evidence


def test_a_call_with_a_response_is_never_sent_again() -> None:
    answers = [evidence for evidence in EVERYTHING if evidence.body is Body.ANSWER]
    with untraced():
        for evidence, tool_class, round_number in product(answers, ToolClass, ROUNDS):
            verdict = failure_verdict(evidence, round_number=round_number, tool_class=tool_class)
            assert verdict == FailureVerdict(Executed.YES, None, answered=True)


def test_a_ping_is_required_only_while_it_could_change_the_verdict() -> None:
    for evidence in EVERYTHING:
        if failure_verdict(evidence).cure is Cure.ASK:
            assert evidence.status == 400
            assert evidence.in_session
            assert evidence.ping_refused is None


@pytest.mark.parametrize(
    ("evidence", "executed", "cure"),
    [
        (Evidence(Moment.NOT_SENT), Executed.NO, Cure.RECONNECT),
        (Evidence(Moment.ANSWERED, 401), Executed.NO, Cure.CREDENTIALS),
        (Evidence(Moment.ANSWERED, 403), Executed.NO, None),
        (Evidence(Moment.ANSWERED, 404, in_session=True), Executed.NO, Cure.SESSION),
        (Evidence(Moment.ANSWERED, 404), Executed.NO, None),
        (Evidence(Moment.ANSWERED, 405), Executed.NO, None),
        (Evidence(Moment.ANSWERED, 406), Executed.NO, None),
        (Evidence(Moment.ANSWERED, 413), Executed.NO, None),
        (Evidence(Moment.ANSWERED, 415), Executed.NO, None),
        (Evidence(Moment.ANSWERED, 421), Executed.NO, None),
        (Evidence(Moment.ANSWERED, 429), Executed.NO, Cure.WAIT),
        (Evidence(Moment.ANSWERED, 400), Executed.MAYBE, None),
        (Evidence(Moment.ANSWERED, 400, in_session=True), Executed.MAYBE, Cure.ASK),
        (Evidence(Moment.ANSWERED, 400, in_session=True, ping_refused=True), Executed.NO, Cure.SESSION),
        (Evidence(Moment.ANSWERED, 400, in_session=True, ping_refused=False), Executed.MAYBE, None),
        (Evidence(Moment.ANSWERED, 503), Executed.MAYBE, None),
        (Evidence(Moment.NOT_SENT, 503), Executed.NO, Cure.RECONNECT),
        (Evidence(Moment.ANSWERED, 500, Body.ANSWER), Executed.YES, None),
        (Evidence(Moment.ANSWERED, 400, Body.ANSWER), Executed.YES, None),
        (Evidence(Moment.BROKEN_OFF, 200, Body.TOO_LARGE), Executed.YES, None),
        (Evidence(Moment.BROKEN_OFF, 500, Body.TOO_LARGE), Executed.MAYBE, None),
        (Evidence(Moment.BROKEN_OFF, 403, Body.TOO_LARGE), Executed.NO, None),
        (Evidence(Moment.SENT), Executed.MAYBE, None),
        (Evidence(Moment.TIMED_OUT), Executed.MAYBE, None),
    ],
)
def test_the_rows_of_the_table_for_a_call_that_may_run_once(
    evidence: Evidence, executed: Executed, cure: Cure | None
) -> None:
    verdict = failure_verdict(evidence)
    assert (verdict.executed, verdict.cure) == (executed, cure)


@pytest.mark.parametrize("tool_class", [ToolClass.READ, ToolClass.REPEATABLE, ToolClass.KEYED])
def test_a_repeatable_call_is_not_repeated_after_its_deadline(tool_class: ToolClass) -> None:
    assert failure_verdict(Evidence(Moment.SENT), tool_class=tool_class).cure is Cure.REPEAT
    assert failure_verdict(Evidence(Moment.TIMED_OUT), tool_class=tool_class).cure is None


def test_a_later_round_that_was_never_sent_may_be_sent_and_the_call_has_still_run_in_part() -> None:
    assert failure_verdict(Evidence(Moment.NOT_SENT), round_number=2) == FailureVerdict(Executed.MAYBE, Cure.RECONNECT)
