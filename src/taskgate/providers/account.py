"""What an account with any vendor is: its models, what they cost, and where and with which key they are asked."""

from __future__ import annotations

from dataclasses import dataclass, field

import httpx2

from taskgate.core.sampling.choose_model import Estimate, Model, estimate
from taskgate.core.sampling.read_request import SamplingRequest


@dataclass(frozen=True, slots=True)
class Account:
    """One account. The HTTP client is shared and belongs to whoever made it."""

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
        """Nothing of its own is open."""
