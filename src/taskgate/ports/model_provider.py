"""What the gateway needs of a language model's vendor: an answer, a list, a price.

A provider answers a server's sampling request where no caller and no person does. It makes one attempt within one
deadline, spends nothing on its own initiative, and raises `SamplingError` for everything that goes wrong; budgets and
consent are asked before it.
"""

from __future__ import annotations

from typing import Protocol

from taskgate.core.sampling.answer import SamplingAnswer
from taskgate.core.sampling.choose_model import Model
from taskgate.core.sampling.request import SamplingRequest
from taskgate.core.sampling.spending import Estimate


class ModelProvider(Protocol):
    """One vendor with one key."""

    @property
    def name(self) -> str:
        """The name it has in the configuration."""
        ...

    def available_models(self) -> tuple[Model, ...]:
        """The models that the operator declared, in their order."""
        ...

    def estimate_cost(self, request: SamplingRequest, model: Model) -> Estimate:
        """What a request will cost at most."""
        ...

    async def create_message(self, request: SamplingRequest, model: Model) -> SamplingAnswer:
        """Ask the model once. Raises SamplingError."""
        ...

    async def close(self) -> None:
        """Give back what it holds open."""
        ...
