"""Choosing a model, its budget, and the format of the result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from taskgate.core.sampling.answer import SamplingAnswer, as_result, price
from taskgate.core.sampling.choose_model import choose_model
from taskgate.core.sampling.errors import SamplingError, SamplingProblem
from taskgate.core.sampling.request import (
    Audio,
    Image,
    Preferences,
    SamplingMessage,
    SamplingRequest,
    Text,
    Tool,
    ToolResult,
    ToolUse,
)
from taskgate.core.sampling.spending import Estimate, SpendLedger, estimate, limits_of_tenant
from taskgate.core.settings.limits import Limits
from taskgate.core.settings.providers import Model, SpendLimits

SMALL = Model("acme-small-1", cost=1.0, speed=0.9, intelligence=0.2, aliases=("haiku",))
LARGE = Model("acme-large-1", cost=0.1, speed=0.3, intelligence=1.0, images=True, input_price=3, output_price=15)
PLAIN = Model("other-plain", tools=False)
TABLE = (SMALL, LARGE, PLAIN)
HELLO = SamplingRequest((SamplingMessage("user", (Text("hello"),)),), max_tokens=100)


def preferences(*hints: str, **priorities: float) -> SamplingRequest:
    return replace(HELLO, preferences=Preferences(hints, **priorities))


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (HELLO, "acme-small-1"),
        (preferences(intelligence=1.0), "acme-large-1"),
        (preferences(cost=1.0), "acme-small-1"),
        (preferences(cost=0.2, intelligence=1.0), "acme-large-1"),
        (preferences("large"), "acme-large-1"),
        (preferences("HAIKU"), "acme-small-1"),
        (preferences("acme", intelligence=1.0), "acme-large-1"),
        (preferences("unheard-of", "plain"), "other-plain"),
        (preferences("unheard-of"), "acme-small-1"),
        (preferences("other-plain", cost=1.0), "other-plain"),
        (
            replace(preferences("small"), messages=(SamplingMessage("user", (Image("A", "image/png"),)),)),
            "acme-large-1",
        ),
        (replace(preferences("plain"), tools=(Tool("t", "", {}),)), "acme-small-1"),
        (replace(preferences("plain"), tools=(Tool("t", "", {}),), tool_choice="none"), "other-plain"),
    ],
)
def test_hints_then_priorities_then_the_order_of_the_table(request_: SamplingRequest, name: str) -> None:
    assert choose_model(TABLE, request_).name == name


def test_an_exact_name_beats_a_longer_one() -> None:
    models = (Model("acme-large-1-preview", intelligence=1.0), LARGE)
    assert choose_model(models, preferences("acme-large-1", intelligence=1.0)) is LARGE


@pytest.mark.parametrize(("models", "detail"), [((), "request."), (TABLE, "request."), ((SMALL,), "(audio)")])
def test_no_model_is_an_error_of_its_own(models: tuple[Model, ...], detail: str) -> None:
    with pytest.raises(SamplingError) as caught:
        choose_model(models, replace(HELLO, messages=(SamplingMessage("user", (Audio("A", "audio/wav"),)),)))
    assert (caught.value.error_type, caught.value.data["legacy_code"]) == ("model_not_available", -32049)
    assert detail in caught.value.message


def test_ten_requests_fit_the_budget_and_the_eleventh_does_not() -> None:
    ledger = SpendLedger(SpendLimits(tokens_per_hour=10_000))
    for minute in range(10):
        ledger.reserve("files", Estimate(500, 500, 0.0), minute * 60.0)
    with pytest.raises(SamplingError) as caught:
        ledger.reserve("files", Estimate(500, 500, 0.0), 600.0)
    assert caught.value.error_type == "sampling_budget_exceeded"
    assert caught.value.retry_after_s == 3000.0
    ledger.reserve("other", Estimate(500, 500, 0.0), 600.0)
    ledger.reserve("files", Estimate(500, 500, 0.0), 3601.0)
    assert ledger.spent("files", 3601.0) == (10_000, 0.0)


def test_share_of_the_limit_is_the_larger_of_tokens_and_money() -> None:
    ledger = SpendLedger(SpendLimits(tokens_per_hour=1_000, money_per_hour=10.0))
    ledger.reserve("files", Estimate(400, 100, 9.0), 0.0)
    ledger.reserve("other", Estimate(600, 200, 1.0), 1_800.0)
    assert ledger.shares(1_800.0) == {"files": 0.9, "other": 0.8}
    assert ledger.shares(3_601.0) == {"files": 0.0, "other": 0.8}, "only the last hour counts"
    unlimited = SpendLedger(SpendLimits())
    unlimited.reserve("files", Estimate(400, 100, 9.0), 0.0)
    assert unlimited.shares(0.0) == {"files": 0.0}


def test_retry_after_covers_all_requests_that_must_expire_first() -> None:
    ledger = SpendLedger(SpendLimits(tokens_per_hour=100))
    for at in (0.0, 60.0):
        ledger.reserve("files", Estimate(30, 0, 0.0), at)
    with pytest.raises(SamplingError) as caught:
        ledger.reserve("files", Estimate(90, 0, 0.0), 120.0)
    assert caught.value.retry_after_s == 60.0 + 3600.0 - 120.0


def test_settling_gives_back_what_was_not_used() -> None:
    ledger = SpendLedger(SpendLimits(money_per_hour=1.0))
    entry = ledger.reserve("files", Estimate(0, 0, 0.9), 0.0)
    with pytest.raises(SamplingError):
        ledger.reserve("files", Estimate(0, 0, 0.5), 0.0)
    ledger.settle(entry, 10, 0.1)
    ledger.reserve("files", Estimate(0, 0, 0.5), 0.0)
    ledger.settle(entry, -5, -1.0)
    assert ledger.spent("files", 0.0) == (0, 0.5)
    assert ledger.spent("nobody", 0.0) == (0, 0.0)


def test_a_request_refused_by_another_budget_is_not_charged() -> None:
    ledger = SpendLedger(SpendLimits(tokens_per_hour=100, requests_per_minute=2))
    kept = ledger.reserve("files", Estimate(10, 10, 0.0), 0.0)
    ledger.withdraw("files", ledger.reserve("files", Estimate(10, 10, 0.0), 0.0))
    ledger.reserve("files", Estimate(70, 10, 0.0), 0.0)
    assert (kept.tokens, ledger.spent("files", 0.0)) == (20, (100, 0.0))


def test_each_gateway_may_spend_its_share() -> None:
    whole = SpendLimits(1_000, 3.0, 7)
    assert whole.part(1) == whole
    assert whole.part(3) == SpendLimits(333, 1.0, 2)
    assert whole.part(10) == SpendLimits(100, 0.3, 1)
    assert SpendLimits(requests_per_minute=0).part(3) == SpendLimits(requests_per_minute=0)
    assert SpendLimits().part(3) == SpendLimits()


def test_tokens_and_money_of_a_tenant_are_limited_and_its_requests_are_not() -> None:
    limits = Limits(sampling_tokens_per_tenant_per_hour=5_000, sampling_money_per_tenant_per_hour=2.5)
    assert limits_of_tenant(limits) == SpendLimits(tokens_per_hour=5_000, money_per_hour=2.5)
    assert limits_of_tenant(Limits()) == SpendLimits()


def test_a_refusal_names_the_exhausted_budget() -> None:
    with pytest.raises(SamplingError) as caught:
        SpendLedger(SpendLimits(money_per_hour=1.0), "This tenant's").reserve("acme", Estimate(0, 0, 2.0), 0.0)
    assert caught.value.problem is SamplingProblem.OVER_BUDGET
    assert "This tenant's" in caught.value.message, "the owner of the limit is named"


def test_a_request_larger_than_the_hourly_budget_is_refused_without_retry() -> None:
    with pytest.raises(SamplingError) as caught:
        SpendLedger(SpendLimits(tokens_per_hour=10)).reserve("files", Estimate(100, 0, 0.0), 0.0)
    assert caught.value.retry_after_s is None


def test_the_rate_is_per_minute_and_has_retry_after() -> None:
    ledger = SpendLedger(SpendLimits(requests_per_minute=2))
    ledger.reserve("files", Estimate(1, 1, 0.0), 0.0)
    ledger.reserve("files", Estimate(1, 1, 0.0), 20.0)
    with pytest.raises(SamplingError) as caught:
        ledger.reserve("files", Estimate(1, 1, 0.0), 30.0)
    assert (caught.value.error_type, caught.value.retry_after_s) == ("sampling_rate_limited", 30.0)
    ledger.reserve("files", Estimate(1, 1, 0.0), 61.0)
    with pytest.raises(SamplingError):
        SpendLedger(SpendLimits(requests_per_minute=0)).reserve("files", Estimate(1, 1, 0.0), 0.0)


@given(st.lists(st.tuples(st.floats(0, 600), st.integers(0, 400), st.integers(0, 400)), max_size=40))
def test_no_order_of_requests_spends_more_than_the_limit_in_any_hour(steps: list[tuple[float, int, int]]) -> None:
    ledger, now = SpendLedger(SpendLimits(tokens_per_hour=1000)), 0.0
    for gap, guess, real in steps:
        now += gap
        try:
            entry = ledger.reserve("files", Estimate(guess, 0, 0.0), now)
        except SamplingError:
            continue
        ledger.settle(entry, min(real, guess), 0.0)
        assert ledger.spent("files", now)[0] <= 1000


def test_an_estimate_counts_words_media_tools_and_the_answer() -> None:
    rich = SamplingRequest(
        (
            SamplingMessage("user", (Text("x" * 350), Image("A", "image/png"))),
            SamplingMessage("assistant", (ToolUse("u", "t", {"q": "y" * 100}),)),
            SamplingMessage("user", (ToolResult("u", (Audio("A", "audio/wav"), Text("z"))),)),
        ),
        max_tokens=500,
        system="s" * 35,
        tools=(Tool("t", "d" * 70, {"type": "object"}),),
    )
    guess = estimate(rich, structs.replace(LARGE, max_tokens=200))
    assert guess.tokens_out == 200
    assert 3200 + 130 < guess.tokens_in < 3200 + 220
    assert guess.money == pytest.approx((guess.tokens_in * 3 + 200 * 15) / 1e6)
    assert estimate(HELLO, SMALL).tokens == 100 + 2 + 4
    assert price(SMALL, 1000, 1000) == 0.0


def test_an_answer_becomes_a_result_with_its_cost() -> None:
    answer = SamplingAnswer((Text("hi"),), "acme-large-1", "endTurn", 1000, 100)
    assert as_result(answer, LARGE) == {
        "role": "assistant",
        "content": {"type": "text", "text": "hi"},
        "model": "acme-large-1",
        "stopReason": "endTurn",
        "_meta": {"tokensUsed": 1100, "cost": 0.0045},
    }
    two = replace(answer, content=(Text("hi"), ToolUse("u", "t", {"q": 1})))
    assert as_result(two, LARGE)["content"][1] == {"type": "tool_use", "id": "u", "name": "t", "input": {"q": 1}}
    assert as_result(replace(answer, content=()), LARGE)["content"] == {"type": "text", "text": ""}


def test_other_limits_count_what_was_spent_before() -> None:
    ledger = SpendLedger(SpendLimits(requests_per_minute=5))
    ledger.reserve("files", Estimate(1, 1, 0.0), 0.0)
    ledger.adopt(SpendLimits(requests_per_minute=1))
    with pytest.raises(SamplingError):
        ledger.reserve("files", Estimate(1, 1, 0.0), 1.0)
