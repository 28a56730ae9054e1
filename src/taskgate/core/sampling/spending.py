"""Spending limits for models, per server and per tenant: tokens and money per hour, requests per minute.

A request is reserved at its estimated cost before it is sent, and settled at its real cost, so that concurrent requests
cannot exceed the limit together. Windows slide by the minute. The object has no clock and no lock: the caller passes
the time, and one event loop owns it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, assert_never

import msgspec

from taskgate.core.sampling.answer import price
from taskgate.core.sampling.errors import SamplingError, SamplingProblem
from taskgate.core.sampling.request import Audio, Block, Image, SamplingRequest, Text, ToolResult, ToolUse
from taskgate.core.settings.limits import Limits
from taskgate.core.settings.providers import Model, SpendLimits

_MINUTE_S, _HOUR_S = 60.0, 3600.0
_TOKENS_PER_MEDIUM = 1600
_CHARACTERS_PER_TOKEN = 3.5


def limits_of_tenant(limits: Limits) -> SpendLimits:
    """Return what models may spend for all callers of one tenant together."""
    return SpendLimits(limits.sampling_tokens_per_tenant_per_hour, limits.sampling_money_per_tenant_per_hour)


class Estimate(msgspec.Struct, frozen=True):
    """The maximum cost of a request. `money` is in the currency of the price table."""

    tokens_in: int
    tokens_out: int
    money: float

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out


class Spending(msgspec.Struct, eq=False):
    """One recorded request, at its estimate until it is settled."""

    at: float
    tokens: int
    money: float


class SpendLedger:
    """The spending of all servers, or of all tenants."""

    def __init__(self, limits: SpendLimits, owner_text: str = "This server's") -> None:
        self.limits = limits
        self.owner_text = owner_text
        """The owner of the limit as text for error messages."""
        self._spent: dict[str, list[Spending]] = {}

    def adopt(self, limits: SpendLimits) -> None:
        """Apply other limits from now on; what was spent still counts."""
        self.limits = limits

    def reserve(self, owner: str, estimate: Estimate, now: float) -> Spending:
        """Record a request, or raise `sampling_rate_limited` or `sampling_budget_exceeded` with the time to wait."""
        spent = self._spent[owner] = [entry for entry in self._spent.get(owner, ()) if entry.at > now - _HOUR_S]
        self._check_rate([entry for entry in spent if entry.at > now - _MINUTE_S], now)
        limits = self.limits
        self._check_sum("tokens", limits.tokens_per_hour, estimate.tokens, [(e.at, e.tokens) for e in spent], now)
        self._check_sum("money", limits.money_per_hour, estimate.money, [(e.at, e.money) for e in spent], now)
        entry = Spending(now, estimate.tokens, estimate.money)
        spent.append(entry)
        return entry

    def withdraw(self, owner: str, entry: Spending) -> None:
        """Remove a request that another ledger refused."""
        self._spent[owner].remove(entry)

    def settle(self, entry: Spending, tokens: int, money: float) -> None:
        """Replace the estimate by the actual cost; zero for a request that was never sent."""
        entry.tokens, entry.money = max(0, tokens), max(0.0, money)

    def spent(self, owner: str, now: float) -> tuple[int, float]:
        """Return tokens and money of the last hour."""
        recent = [entry for entry in self._spent.get(owner, ()) if entry.at > now - _HOUR_S]
        return sum(entry.tokens for entry in recent), sum(entry.money for entry in recent)

    def shares(self, now: float) -> dict[str, float]:
        """Return how much of its limit each owner has spent in the last hour, as a part of one: the larger of tokens and money."""
        found = {}
        for owner in self._spent:
            tokens, money = self.spent(owner, now)
            limited = ((tokens, self.limits.tokens_per_hour), (money, self.limits.money_per_hour))
            found[owner] = max((amount / limit for amount, limit in limited if limit), default=0.0)
        return found

    def _check_rate(self, recent: list[Spending], now: float) -> None:
        limit = self.limits.requests_per_minute
        if limit is None or len(recent) < limit:
            return
        wait = recent[-limit].at + _MINUTE_S - now if limit > 0 else _MINUTE_S
        raise SamplingError(
            SamplingProblem.RATE_LIMITED,
            "This server sends too many requests to its model. Try again later.",
            retry_after_s=wait,
        )

    def _check_sum(
        self, what: str, limit: float | None, needed: float, spent: list[tuple[float, float]], now: float
    ) -> None:
        if limit is None:
            return
        over = sum(amount for _, amount in spent) + needed - limit
        if over <= 1e-9:
            return
        raise SamplingError(
            SamplingProblem.OVER_BUDGET,
            f"{self.owner_text} budget of {what} for one hour is used up.",
            retry_after_s=_until_free(over, spent, now),
        )


def _until_free(over: float, spent: Iterable[tuple[float, float]], now: float) -> float | None:
    """Seconds until enough of the hour has passed; None if the request alone exceeds the limit."""
    for at, amount in sorted(spent):
        over -= amount
        if over <= 1e-9:
            return at + _HOUR_S - now
    return None


def estimate(request: SamplingRequest, model: Model) -> Estimate:
    """Return an upper estimate without a tokenizer: by characters for text, a flat amount for an image or audio."""
    blocks = [block for message in request.messages for block in message.content]
    tokens_in = math.ceil(len(request.system) / _CHARACTERS_PER_TOKEN) + 4 * len(request.messages)
    tokens_in += sum(_tokens(block) for block in blocks)
    for tool in request.tools:
        tokens_in += math.ceil((len(tool.description) + _json_length(tool.input_schema)) / _CHARACTERS_PER_TOKEN)
    tokens_out = min(request.max_tokens, model.max_tokens or request.max_tokens)
    return Estimate(tokens_in, tokens_out, price(model, tokens_in, tokens_out))


def _tokens(block: Block) -> int:
    match block:
        case Text():
            return math.ceil(len(block.text) / _CHARACTERS_PER_TOKEN)
        case Image() | Audio():
            return _TOKENS_PER_MEDIUM
        case ToolUse():
            return math.ceil(_json_length(block.input) / _CHARACTERS_PER_TOKEN)
        case ToolResult():
            return sum(_tokens(part) for part in block.content)
        case _:
            assert_never(block)


def _json_length(value: Mapping[str, Any]) -> int:
    return len(json.dumps(value, default=str))
