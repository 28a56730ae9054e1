"""The `providers` section: language models that may answer sampling requests of servers."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from taskgate.config.model.values import Count, Duration, HttpUrl, Money, Section

Share = Annotated[float, Field(ge=0.0, le=1.0)]


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Model(Section):
    """One model and how it compares with the others."""

    name: Annotated[str, Field(min_length=1)] = Field(description="The provider's name for it.")
    cost: Share = Field(default=0.5, description="How cheap, 0 to 1 (1 is cheapest).")
    speed: Share = Field(default=0.5, description="How fast, 0 to 1.")
    intelligence: Share = Field(default=0.5, description="How capable, 0 to 1.")
    input_price: Money = Field(default=0.0, description="Money per million tokens in.")
    output_price: Money = Field(default=0.0, description="Money per million tokens out.")
    max_tokens: Count | None = Field(default=None, description="The most it may write in one answer.")
    images: bool = Field(default=False, description="Whether it takes images.")
    audio: bool = Field(default=False, description="Whether it takes audio.")
    tools: bool = Field(default=True, description="Whether it takes tools.")
    aliases: tuple[str, ...] = Field(default=(), description="More words that a hint may use for it.")


class ProviderBudgets(Section):
    """What one server may spend with a provider in one hour."""

    tokens_per_hour: Count | None = Field(default=None, description="Tokens of one server in an hour.")
    money_per_hour: Money | None = Field(default=None, description="Money of one server in an hour.")
    requests_per_minute: Count | None = Field(default=None, description="Requests of one server in a minute.")


class Provider(Section):
    """One provider."""

    kind: Literal["openai", "anthropic"] = Field(description="Which HTTP API it speaks.")
    base_url: HttpUrl | None = Field(default=None, description="Where it is; default: the vendor's own address.")
    api_key_env: str | None = Field(default=None, description="Variable that holds the key.")
    api_key_file: str | None = Field(default=None, description="File that holds the key; relative to this file.")
    models: tuple[Annotated[Model, BeforeValidator(_named)], ...] = Field(min_length=1, description="What may be used.")
    budgets: ProviderBudgets = Field(default_factory=ProviderBudgets, description="What each server may spend.")
    timeout: Duration = Field(default=timedelta(seconds=60), description="For one answer.")
    human_review: bool = Field(default=False, description="A person sees question and answer first.")

    @model_validator(mode="after")
    def _one_key(self) -> Provider:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("api_key_env and api_key_file are both given; keep one")
        names = [model.name for model in self.models]
        if len(set(names)) != len(names):
            raise ValueError("a model is listed twice; keep one of each name")
        return self
