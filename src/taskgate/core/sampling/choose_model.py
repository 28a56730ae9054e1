"""Choose the model that answers a sampling request: by hints, then by priorities, then by the order of the table.

Hints are advisory (client/sampling, model preferences): a hint that matches no declared model is skipped. Abilities are
not: a conversation with images never goes to a model that does not accept images.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskgate.core.sampling.errors import SamplingError, SamplingProblem
from taskgate.core.sampling.request import Audio, Image, Preferences, SamplingRequest
from taskgate.core.settings.providers import Model


def choose_model(models: Sequence[Model], request: SamplingRequest) -> Model:
    """Return the model for a request. Raises `model_not_available` if no declared model can handle it."""
    able = [model for model in models if not missing_abilities(model, request)]
    if not able:
        lacking = missing_abilities(models[0], request) if len(models) == 1 else ()
        detail = f" ({', '.join(lacking)})" if lacking else ""
        raise SamplingError(SamplingProblem.MODEL_NOT_AVAILABLE, f"No declared model can answer this request{detail}.")
    hinted = next((found for hint in request.preferences.hints if (found := _matching(able, hint))), able)
    return max(hinted, key=lambda model: _score(model, request.preferences))


def missing_abilities(model: Model, request: SamplingRequest) -> tuple[str, ...]:
    """Return what the request needs and this model does not support."""
    needs = (
        ("images", request.needs(Image) and not model.images),
        ("audio", request.needs(Audio) and not model.audio),
        ("tools", bool(request.tools) and request.tool_choice != "none" and not model.tools),
    )
    return tuple(name for name, missing in needs if missing)


def _matching(models: Sequence[Model], hint: str) -> list[Model]:
    exact = [model for model in models if hint in (model.name, *model.aliases)]
    return exact or [model for model in models if matches_hint(model, hint)]


def _score(model: Model, preferences: Preferences) -> float:
    # `max` keeps the first of equals, so the order of the table decides between equal scores.
    return round(
        preferences.cost * model.cost + preferences.speed * model.speed + preferences.intelligence * model.intelligence,
        9,
    )


def matches_hint(model: Model, hint: str) -> bool:
    """Whether a hint, which may be part of a name, matches this model."""
    part = hint.casefold()
    return any(part in name.casefold() for name in (model.name, *model.aliases))
