"""The `providers` section: language models that may answer sampling requests of servers."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from taskgate.core.settings.durations import duration
from taskgate.core.settings.section import Section
from taskgate.core.settings.values import Count, Duration, HttpUrl, Money

Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class Model(Section):
    """One language model and its relative cost, speed and capability."""

    name: Annotated[str, Meta(min_length=1, description="Name of the model at the provider.")]
    cost: Annotated[Share, Meta(description="How cheap it is, 0 to 1 (1 is cheapest).")] = 0.5
    speed: Annotated[Share, Meta(description="How fast it is, 0 to 1.")] = 0.5
    intelligence: Annotated[Share, Meta(description="How capable it is, 0 to 1.")] = 0.5
    input_price: Annotated[Money, Meta(description="Price per million input tokens.")] = 0.0
    output_price: Annotated[Money, Meta(description="Price per million output tokens.")] = 0.0
    max_tokens: Annotated[Count | None, Meta(description="Maximum output tokens of one reply.")] = None
    images: Annotated[bool, Meta(description="Whether it accepts images.")] = False
    audio: Annotated[bool, Meta(description="Whether it accepts audio.")] = False
    tools: Annotated[bool, Meta(description="Whether it accepts tools.")] = True
    aliases: Annotated[tuple[str, ...], Meta(description="Further names that a model hint may use.")] = ()


class SpendLimits(Section):
    """What may be spent with models. None means no limit."""

    tokens_per_hour: Annotated[Count | None, Meta(description="Tokens per server and hour. Unset: no limit.")] = None
    money_per_hour: Annotated[Money | None, Meta(description="Cost per server and hour. Unset: no limit.")] = None
    requests_per_minute: Annotated[
        Count | None, Meta(description="Requests per server and minute. Unset: no limit.")
    ] = None

    def part(self, among: int) -> SpendLimits:
        """Return the limits of each of several gateways that count separately. At least one request per minute remains."""
        tokens, money, requests = self.tokens_per_hour, self.money_per_hour, self.requests_per_minute
        return SpendLimits(
            None if tokens is None else tokens // among,
            None if money is None else money / among,
            None if requests is None else max(min(requests, 1), requests // among),
        )


class Provider(Section, kw_only=True):
    """One provider of language models."""

    kind: Annotated[Literal["openai", "anthropic"], Meta(description="HTTP API of the provider.")]
    base_url: Annotated[HttpUrl | None, Meta(description="Base URL. Default: the vendor's public address.")] = None
    api_key_env: Annotated[str | None, Meta(description="Environment variable with the API key.")] = None
    api_key_file: Annotated[str | None, Meta(description="File with the API key, relative to this file.")] = None
    models: Annotated[
        tuple[Model, ...],
        Meta(min_length=1, description="Models that may be used."),
    ]
    budgets: Annotated[SpendLimits, Meta(description="What each server may spend.")] = SpendLimits()
    timeout: Annotated[Duration, Meta(description="Timeout of one request.")] = duration("60s")
    human_review: Annotated[bool, Meta(description="A person reviews each request and reply.")] = False

    def __post_init__(self) -> None:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("api_key_env and api_key_file are both set; remove one")
        names = [model.name for model in self.models]
        if len(set(names)) != len(names):
            raise ValueError("a model is listed twice; remove one")
