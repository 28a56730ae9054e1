"""Choose the model that answers a sampling request: by hints, then by priorities, then by the order of the table.

Hints are advisory (client/sampling, model preferences): a hint that matches no declared model is skipped. Abilities are
not: a conversation with images never goes to a model that does not accept images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskgate.core.sampling.errors import SamplingError, SamplingProblem
from taskgate.core.sampling.request import Audio, Image, Preferences, SamplingRequest

# Which declared model answers: the first hint that names some, then the priorities, then the order of the table.
#
# Hints are advice (client/sampling, model preferences): one that names no declared model is passed over. What a model
# cannot do is not advice: a conversation with images never goes to a model that takes none.
#
# A model's answer, and its form as the result of `sampling/createMessage`.
#
# What a server, or all callers of a tenant together, may spend on models: tokens and money in an hour, requests in a minute.
#
# A request is reserved at its estimate before it is sent and settled at what it cost, so that many at once cannot
# overrun the budget together. Windows slide by the minute. A plain object without clock or lock: it is told the time,
# and one loop owns it.


@dataclass(frozen=True, slots=True)
class Model:
    """One declared model. `cost` is how cheap it is; that, speed and intelligence compare models, from 0 to 1."""

    name: str
    provider: str
    cost: float = 0.5
    speed: float = 0.5
    intelligence: float = 0.5
    input_price: float = 0.0
    output_price: float = 0.0
    max_tokens: int | None = None
    images: bool = False
    audio: bool = False
    tools: bool = True
    aliases: tuple[str, ...] = ()

    def answers_to(self, hint: str) -> bool:
        """Whether a hint, which may be a part of a name, means this model."""
        wanted = hint.casefold()
        return any(wanted in name.casefold() for name in (self.name, *self.aliases))


def choose_model(models: Sequence[Model], request: SamplingRequest) -> Model:
    """The model for a request. Raises `model_not_available` when none of the declared ones can take it."""
    able = [model for model in models if not missing_abilities(model, request)]
    if not able:
        lacking = missing_abilities(models[0], request) if len(models) == 1 else ()
        detail = f" ({', '.join(lacking)})" if lacking else ""
        raise SamplingError(SamplingProblem.MODEL_NOT_AVAILABLE, f"No declared model can answer this request{detail}.")
    hinted = next((found for hint in request.preferences.hints if (found := _meant(able, hint))), able)
    return max(hinted, key=lambda model: _score(model, request.preferences))


def missing_abilities(model: Model, request: SamplingRequest) -> tuple[str, ...]:
    """What the request needs and this model does not take."""
    needs = (
        ("images", request.needs(Image) and not model.images),
        ("audio", request.needs(Audio) and not model.audio),
        ("tools", bool(request.tools) and request.tool_choice != "none" and not model.tools),
    )
    return tuple(name for name, missing in needs if missing)


def _meant(models: Sequence[Model], hint: str) -> list[Model]:
    exact = [model for model in models if hint in (model.name, *model.aliases)]
    return exact or [model for model in models if model.answers_to(hint)]


def _score(model: Model, wish: Preferences) -> float:
    # `max` keeps the first of equals, so the order of the table decides where nothing else does.
    return round(wish.cost * model.cost + wish.speed * model.speed + wish.intelligence * model.intelligence, 9)
