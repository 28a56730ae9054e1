"""Build the optional features, including the models that may answer sampling requests.

API keys of model providers are read here, from the environment or from files, and passed to the provider only. The HTTP client
is created, and its library imported, only if a provider is configured.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from taskgate.config.files import read_text
from taskgate.config.model.gateway_file import GatewayFile
from taskgate.config.model.providers import Provider
from taskgate.config.problems import ConfigError, Problem
from taskgate.core.catalog.task_card import TaskCard
from taskgate.core.sampling.choose_model import Model
from taskgate.core.sampling.spending import SpendLimits
from taskgate.gateway.features import Features, ModelSource, Validate

if TYPE_CHECKING:
    pass


_MAX_KEY_BYTES = 64 * 1024


def build_features(root: GatewayFile, before: Features | None = None) -> Features:
    features = Features(
        Validate(root.validate_arguments),
        root.completion.learn,
        root.compat.vendor_methods,
        root.errors.profile == "erlmcp",
        root.limits.url_elicitations_per_minute,
        root.limits.url_elicitation_expiry.total_seconds(),
        root.limits.url_elicitation_loopback,
        root.store is not None and root.store.unsafe_degraded_passthrough,
        anonymous_tasks_by_session=root.auth.anonymous_tasks == "session",
        task_card=TaskCard(root.apps.task_card),
        result_not_ready=root.compat.result_not_ready,
        audit_every_call=root.audit.calls == "every",
        model_servers=frozenset(name for name, server in root.servers.items() if server.sampling == "provider"),
    )
    if not root.providers:
        return features
    keys = {name: _key(name, provider) for name, provider in root.providers.items()}
    origin = (root.model_dump(include={"providers"}), keys)
    if before is not None and before.models_origin == origin:
        # The same providers: the connections that are open to them stay.
        return replace(features, models=before.models, close_models=before.close_models, models_origin=origin)
    return replace(_with_models(features, root, keys), models_origin=origin)


def _with_models(features: Features, root: GatewayFile, keys: dict[str, str]) -> Features:
    import httpx2

    from taskgate.providers.anthropic import ANTHROPIC_URL as ANTHROPIC
    from taskgate.providers.anthropic import AnthropicProvider
    from taskgate.providers.openai import OPENAI_URL as OPENAI
    from taskgate.providers.openai import OpenAiProvider

    client = httpx2.AsyncClient(follow_redirects=False)
    sources = []
    for name, provider in root.providers.items():
        kind, vendor = (OpenAiProvider, OPENAI) if provider.kind == "openai" else (AnthropicProvider, ANTHROPIC)
        made = kind(
            name,
            _models(name, provider),
            client,
            keys[name],
            str(provider.base_url) if provider.base_url is not None else vendor,
            provider.timeout.total_seconds(),
        )
        budgets = provider.budgets
        limits = SpendLimits(budgets.tokens_per_hour, budgets.money_per_hour, budgets.requests_per_minute)
        sources.append(ModelSource(made, limits, provider.human_review))
    return replace(features, models=tuple(sources), close_models=client.aclose)


def _models(name: str, provider: Provider) -> tuple[Model, ...]:
    return tuple(
        Model(
            model.name,
            name,
            model.cost,
            model.speed,
            model.intelligence,
            model.input_price,
            model.output_price,
            model.max_tokens,
            model.images,
            model.audio,
            model.tools,
            model.aliases,
        )
        for model in provider.models
    )


def _key(name: str, provider: Provider) -> str:
    """Read the key from its configured source. An OpenAI-compatible service on this machine may need none."""
    if provider.api_key_file is not None:
        return read_text(Path(provider.api_key_file), _MAX_KEY_BYTES).strip()
    if provider.api_key_env is None:
        return ""
    key = os.environ.get(provider.api_key_env)
    if key is None:
        problem = f"the variable {provider.api_key_env} is not set"
        raise ConfigError(
            [Problem("", 0, 0, f"providers.{name}.api_key_env", problem, "set it, or remove the provider")]
        )
    return key
