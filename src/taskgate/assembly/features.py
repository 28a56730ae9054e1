"""Build the optional features, including the models that may answer sampling requests.

API keys of model providers are read here, from the environment or from files, and passed to the provider only. The HTTP client
is created, and its library imported, only if a provider is configured.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from taskgate.config.files import read_text
from taskgate.config.problems import ConfigError, Problem
from taskgate.core.catalog.task_card import TaskCard
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.core.settings.providers import Provider
from taskgate.gateway.features import Features, ModelSource, Validate

_MAX_KEY_BYTES = 64 * 1024


def build_features(root: GatewayFile, before: Features | None = None) -> Features:
    features = Features(
        validate=Validate(root.validate_arguments),
        learn=root.completion.learn,
        vendor_methods=root.compat.vendor_methods,
        legacy_numbers=root.errors.profile == "erlmcp",
        seed_task_codes=root.errors.task_codes == "seed",
        degraded_passthrough=root.store is not None and root.store.unsafe_degraded_passthrough,
        anonymous_tasks_by_session=root.auth.anonymous_tasks == "session",
        task_card=TaskCard(root.apps.task_card),
        result_not_ready=root.compat.result_not_ready,
        audit_every_call=root.audit.calls == "every",
        model_servers=frozenset(name for name, server in root.servers.items() if server.sampling == "provider"),
    )
    if not root.providers:
        return features
    keys = {name: _key(name, provider) for name, provider in root.providers.items()}
    origin = (root.providers, keys)
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
            provider.models,
            client,
            keys[name],
            str(provider.base_url) if provider.base_url is not None else vendor,
            provider.timeout,
        )
        sources.append(ModelSource(made, provider.budgets, provider.human_review))
    return replace(features, models=tuple(sources), close_models=client.aclose)


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
            [
                Problem(
                    file="",
                    line=0,
                    column=0,
                    key=f"providers.{name}.api_key_env",
                    message=problem,
                    hint="set it, or remove the provider",
                )
            ]
        )
    return key
