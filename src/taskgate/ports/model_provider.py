"""The port of language model vendors: answer a request, list models, estimate the cost.

A provider answers a server's sampling request if neither the caller nor a person does. It makes one attempt within one deadline,
makes no other requests, and raises `SamplingError` for every failure. Budgets and consent are checked before it is called.
"""

from __future__ import annotations

from typing import Protocol

from taskgate.core.sampling.answer import SamplingAnswer
from taskgate.core.sampling.request import SamplingRequest
from taskgate.core.sampling.spending import Estimate
from taskgate.core.settings.providers import Model


class ModelProvider(Protocol):
    """One vendor with one key."""

    @property
    def name(self) -> str:
        """The name of the provider in the configuration."""
        ...

    def available_models(self) -> tuple[Model, ...]:
        """The models that the operator declared, in the order of the configuration."""
        ...

    def estimate_cost(self, request: SamplingRequest, model: Model) -> Estimate:
        """Return the maximum cost of a request."""
        ...

    async def create_message(self, request: SamplingRequest, model: Model) -> SamplingAnswer:
        """Send the request to the model once. Raises SamplingError."""
        ...

    async def close(self) -> None:
        """Close open connections."""
        ...
