"""The base class of accounts with a provider of models."""

from __future__ import annotations

from dataclasses import field

import httpx2

from taskgate.core.sampling.choose_model import Model
from taskgate.core.sampling.request import SamplingRequest
from taskgate.core.sampling.spending import Estimate, estimate
from taskgate.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Account:
    """An account with a provider: its models and prices, address and key. The HTTP client is shared; its creator closes it."""

    name: str
    models: tuple[Model, ...]
    client: httpx2.AsyncClient = field(repr=False)
    key: str = field(repr=False)
    base_url: str
    timeout_s: float = 60.0

    def available_models(self) -> tuple[Model, ...]:
        return self.models

    def estimate_cost(self, request: SamplingRequest, model: Model) -> Estimate:
        return estimate(request, model)

    async def close(self) -> None:
        """Nothing to close: the HTTP client is shared."""
