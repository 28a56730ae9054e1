"""The `providers` section: language models that may answer sampling requests of servers."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from taskgate.config.model.values import Count, Duration, HttpUrl, Money
from taskgate.config.sections import BeforeValidator, Field, Section, model_validator

Share = Annotated[float, Field(ge=0.0, le=1.0)]


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Model(Section):
    """One language model and its relative cost, speed and capability."""

    name: Annotated[str, Field(min_length=1)] = Field(description="Name of the model at the provider.")
    cost: Share = Field(default=0.5, description="How cheap it is, 0 to 1 (1 is cheapest).")
    speed: Share = Field(default=0.5, description="How fast it is, 0 to 1.")
    intelligence: Share = Field(default=0.5, description="How capable it is, 0 to 1.")
    input_price: Money = Field(default=0.0, description="Price per million input tokens.")
    output_price: Money = Field(default=0.0, description="Price per million output tokens.")
    max_tokens: Count | None = Field(default=None, description="Maximum output tokens of one reply.")
    images: bool = Field(default=False, description="Whether it accepts images.")
    audio: bool = Field(default=False, description="Whether it accepts audio.")
    tools: bool = Field(default=True, description="Whether it accepts tools.")
    aliases: tuple[str, ...] = Field(default=(), description="Further names that a model hint may use.")


class ProviderBudgets(Section):
    """What one server may spend with a provider."""

    tokens_per_hour: Count | None = Field(default=None, description="Tokens per server and hour. Unset: no limit.")
    money_per_hour: Money | None = Field(default=None, description="Cost per server and hour. Unset: no limit.")
    requests_per_minute: Count | None = Field(
        default=None, description="Requests per server and minute. Unset: no limit."
    )


class Provider(Section):
    """One provider of language models."""

    kind: Literal["openai", "anthropic"] = Field(description="HTTP API of the provider.")
    base_url: HttpUrl | None = Field(default=None, description="Base URL. Default: the vendor's public address.")
    api_key_env: str | None = Field(default=None, description="Environment variable with the API key.")
    api_key_file: str | None = Field(default=None, description="File with the API key, relative to this file.")
    models: tuple[Annotated[Model, BeforeValidator(_named)], ...] = Field(
        min_length=1, description="Models that may be used."
    )
    budgets: ProviderBudgets = Field(
        default_factory=ProviderBudgets.model_construct, description="What each server may spend."
    )
    timeout: Duration = Field(default=timedelta(seconds=60), description="Timeout of one request.")
    human_review: bool = Field(default=False, description="A person reviews each request and reply.")

    @model_validator
    def _one_key(self) -> Provider:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("api_key_env and api_key_file are both set; remove one")
        names = [model.name for model in self.models]
        if len(set(names)) != len(names):
            raise ValueError("a model is listed twice; remove one")
        return self
