"""The base class of accounts with a provider of models."""

from __future__ import annotations

import httpx2
import msgspec

from taskgate.core.sampling.request import SamplingRequest
from taskgate.core.sampling.spending import Estimate, estimate
from taskgate.core.settings.providers import Model
from taskgate.shown_fields import repr_without


class Account(msgspec.Struct, frozen=True):
    """An account with a provider: its models and prices, address and key. The HTTP client is shared; its creator closes it."""

    name: str
    models: tuple[Model, ...]
    client: httpx2.AsyncClient
    key: str
    base_url: str
    timeout_s: float = 60.0

    __repr__ = repr_without("client", "key")

    def available_models(self) -> tuple[Model, ...]:
        return self.models

    def estimate_cost(self, request: SamplingRequest, model: Model) -> Estimate:
        return estimate(request, model)

    async def close(self) -> None:
        """Nothing to close: the HTTP client is shared."""
